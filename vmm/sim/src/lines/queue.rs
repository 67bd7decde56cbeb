//! Requests that wait for a line, and which of them is served next.

use super::Request;

/// Requests that wait for a line, by the cluster that they come from.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    /// Clusters with requests that wait, in no order.
    pub(super) clusters: Vec<(u16, Vec<Request>)>,
    /// Grants in a row within one cluster while others waited elsewhere.
    streak: u32,
}

impl Queue {
    pub(super) fn push(&mut self, cluster: u16, request: Request) {
        let index = self.clusters.iter().position(|(other, _)| *other == cluster).unwrap_or_else(|| {
            self.clusters.push((cluster, Vec::new()));
            self.clusters.len() - 1
        });
        self.clusters[index].1.push(request);
    }

    /// Takes the request that is served next: any of the cluster `near`, as `random` says, unless others have waited for `most` such
    /// grants; then any from elsewhere.
    pub(super) fn take(&mut self, near: u16, most: u32, random: u64) -> Option<Request> {
        let waiting = |is_near: bool| {
            let clusters = self.clusters.iter().filter(move |(cluster, _)| (*cluster == near) == is_near);
            clusters.map(|(_, waiting)| waiting.len()).sum::<usize>()
        };
        let (near_waiting, far_waiting) = (waiting(true), waiting(false));
        let is_near = near_waiting > 0 && (far_waiting == 0 || self.streak < most);
        self.streak = if is_near && far_waiting > 0 { self.streak + 1 } else { 0 };
        let mut at = (random % (if is_near { near_waiting } else { far_waiting }).max(1) as u64) as usize;
        let index = self.clusters.iter().position(|(cluster, waiting)| {
            let is_here = (*cluster == near) == is_near;
            let is_it = is_here && at < waiting.len();
            if is_here && !is_it {
                at -= waiting.len();
            }
            is_it
        })?;
        let taken = self.clusters[index].1.swap_remove(at);
        if self.clusters[index].1.is_empty() {
            self.clusters.swap_remove(index);
        }
        if self.clusters.is_empty() {
            self.clusters = Vec::new();
        }
        Some(taken)
    }
}
