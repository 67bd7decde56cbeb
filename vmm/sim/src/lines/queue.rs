//! Requests that wait for a line, and which of them is served next.

use std::collections::VecDeque;

use super::Request;

/// Requests that wait for a line, by the cluster that they come from.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    /// Clusters from which requests have come so far, with those that wait, the oldest first.
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
        self.clusters[index].1.pop_front()
    }
}
