//! Requests that wait for a line, and which of them is served next.

use std::collections::VecDeque;

use super::{Need, Request};

/// Requests that wait for a line, by the cluster that they come from.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    /// Clusters with requests that wait, the oldest of each first.
    clusters: Vec<(u16, VecDeque<Request>)>,
    /// Grants in a row within one cluster while others waited elsewhere.
    streak: u32,
}

impl Queue {
    /// Adds a request, which is younger than all others.
    pub(super) fn push(&mut self, cluster: u16, request: Request) {
        let index = self.clusters.iter().position(|(other, _)| *other == cluster).unwrap_or_else(|| {
            self.clusters.push((cluster, VecDeque::new()));
            self.clusters.len() - 1
        });
        self.clusters[index].1.push_back(request);
    }

    /// Takes the request that is served next: the oldest of the cluster `near`, unless others have waited for `most` such grants;
    /// then the oldest from elsewhere.
    pub(super) fn take(&mut self, near: u16, most: u32) -> Option<Request> {
        let (mut near_at, mut oldest) = (None, None);
        for (index, (cluster, waiting)) in self.clusters.iter().enumerate() {
            match waiting.front() {
                None => {}
                Some(_) if *cluster == near => near_at = Some(index),
                Some(first) => oldest = oldest.into_iter().chain([(first.arrival, index)]).min(),
            }
        }
        let far_at = oldest.map(|(_, index)| index);
        let both = near_at.is_some() && far_at.is_some();
        let near_first = self.streak < most;
        let index = if near_first { near_at.or(far_at) } else { far_at.or(near_at) }?;
        self.streak = if both && near_at == Some(index) { self.streak + 1 } else { 0 };
        self.take_first(index)
    }

    fn take_first(&mut self, index: usize) -> Option<Request> {
        let waiting = &mut self.clusters[index].1;
        let first = waiting.pop_front();
        if waiting.is_empty() {
            // In no order, which `take` does not rest on.
            self.clusters.swap_remove(index);
        }
        if self.clusters.is_empty() {
            self.clusters = Vec::new();
        }
        first
    }

    /// Takes the oldest request of these clusters, which are bits, if that is to read and no request to write came before it.
    pub(super) fn take_read(&mut self, clusters: u128) -> Option<Request> {
        let write = self.oldest_write().unwrap_or(u64::MAX);
        let here =
            self.clusters.iter().enumerate().filter(|(_, (cluster, _))| clusters & 1_u128 << *cluster != 0);
        let first = here.filter_map(|(index, (_, waiting))| Some((waiting.front()?.arrival, index))).min()?;
        if first.0 < write { self.take_first(first.1) } else { None }
    }

    /// Room for clusters.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.clusters.capacity()
    }

    /// Whether a request to write waits.
    pub(super) fn has_write(&self) -> bool {
        self.oldest_write().is_some()
    }

    fn oldest_write(&self) -> Option<u64> {
        let waiting = self.clusters.iter().flat_map(|(_, waiting)| waiting);
        let writes = waiting.filter(|request| request.need == Need::Write);
        writes.map(|request| request.arrival).min()
    }
}
