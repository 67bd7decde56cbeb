//! Places of the CPUs of a machine: sockets, clusters of cores that share a cache, cores, threads.

pub(super) const MAX_CPUS: u32 = 1024;
/// Most clusters: their sets are bits of one number.
pub(super) const MAX_CLUSTERS: u32 = 128;

/// Place of a CPU. All numbers count through the whole machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuPlace {
    /// Which socket.
    pub socket: u16,
    /// Which cluster.
    pub cluster: u16,
    /// Which core.
    pub core: u16,
}

/// How many of everything there are, and how far apart the sockets.
///
/// CPUs are numbered as Linux does on most of these machines: the first threads of all cores, socket by socket, then the
/// second threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    sockets: u32,
    cores_per_socket: u32,
    threads_per_core: u32,
    cores_per_cluster: u32,
    /// Hops between sockets, row by row.
    hops: Vec<u8>,
}

impl Topology {
    /// `hops`: for every socket, its distance from each; `None`: any two are one hop apart.
    ///
    /// # Errors
    /// What is wrong with the numbers.
    pub fn new(
        [sockets, cores_per_socket, threads_per_core]: [u32; 3],
        cores_per_cluster: Option<u32>,
        hops: Option<&[Vec<u8>]>,
    ) -> Result<Self, String> {
        let cores_per_cluster = cores_per_cluster.unwrap_or(cores_per_socket);
        for (what, count) in [
            ("sockets", sockets),
            ("cores-per-socket", cores_per_socket),
            ("threads-per-core", threads_per_core),
            ("cores-per-cluster", cores_per_cluster),
        ] {
            if count == 0 || count > MAX_CPUS {
                return Err(format!("{what} is {count}: it must be 1 to {MAX_CPUS}"));
            }
        }
        let cpus = u64::from(sockets) * u64::from(cores_per_socket) * u64::from(threads_per_core);
        if cpus > u64::from(MAX_CPUS) {
            return Err(format!("the machine has {cpus} CPUs: at most {MAX_CPUS} can be simulated"));
        }
        if cores_per_socket % cores_per_cluster != 0 {
            return Err(format!(
                "{cores_per_socket} cores of a socket are no multiple of {cores_per_cluster} of a cluster"
            ));
        }
        let clusters = sockets * (cores_per_socket / cores_per_cluster);
        if clusters > MAX_CLUSTERS {
            return Err(format!(
                "the machine has {clusters} clusters: at most {MAX_CLUSTERS} can be simulated"
            ));
        }
        let hops = match hops {
            Some(rows) => check_hops(rows, sockets as usize)?,
            None => {
                let pairs = (0..sockets).flat_map(|a| (0..sockets).map(move |b| u8::from(a != b)));
                pairs.collect()
            }
        };
        Ok(Self { sockets, cores_per_socket, threads_per_core, cores_per_cluster, hops })
    }

    /// How many CPUs there are.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        self.cores() * self.threads_per_core
    }

    /// How many cores.
    #[must_use]
    pub fn cores(&self) -> u32 {
        self.sockets * self.cores_per_socket
    }

    /// How many sockets.
    #[must_use]
    pub fn sockets(&self) -> u32 {
        self.sockets
    }

    /// How many clusters.
    #[must_use]
    pub fn clusters(&self) -> u32 {
        self.cores() / self.cores_per_cluster
    }

    /// Place of CPU `cpu`.
    ///
    /// # Panics
    /// If the machine has no such CPU.
    #[must_use]
    pub fn place(&self, cpu: u32) -> CpuPlace {
        assert!(cpu < self.cpus(), "CPU {cpu} of {}", self.cpus());
        let core = cpu % self.cores();
        CpuPlace {
            socket: (core / self.cores_per_socket) as u16,
            cluster: (core / self.cores_per_cluster) as u16,
            core: core as u16,
        }
    }

    /// The CPUs of the core of `cpu`, besides itself.
    pub fn siblings(&self, cpu: u32) -> impl Iterator<Item = u32> + use<> {
        let (cores, threads) = (self.cores(), self.threads_per_core);
        (0..threads).map(move |thread| cpu % cores + thread * cores).filter(move |&other| other != cpu)
    }

    /// Hops from one socket to another; 0: it is the same.
    #[must_use]
    pub fn hops(&self, from: u16, to: u16) -> u8 {
        self.hops[usize::from(from) * self.sockets as usize + usize::from(to)]
    }

    /// The longest way between two sockets.
    #[must_use]
    pub fn most_hops(&self) -> u8 {
        self.hops.iter().copied().max().unwrap_or(0)
    }

    /// The clusters of a socket, as bits.
    #[must_use]
    pub fn clusters_of(&self, socket: u16) -> u128 {
        let per_socket = self.cores_per_socket / self.cores_per_cluster;
        let all = if per_socket == u128::BITS { u128::MAX } else { (1 << per_socket) - 1 };
        all << (u32::from(socket) * per_socket)
    }
}

fn check_hops(rows: &[Vec<u8>], sockets: usize) -> Result<Vec<u8>, String> {
    if rows.len() != sockets || rows.iter().any(|row| row.len() != sockets) {
        return Err(format!(
            "hops must be {sockets} rows of {sockets} numbers, one for each pair of sockets"
        ));
    }
    for (a, row) in rows.iter().enumerate() {
        for (b, &hops) in row.iter().enumerate() {
            if hops != rows[b][a] {
                return Err(format!(
                    "hops from socket {a} to {b} are {hops}, and {} on the way back",
                    rows[b][a]
                ));
            }
            if (hops == 0) != (a == b) {
                return Err(format!(
                    "hops from socket {a} to {b} are {hops}: 0 is the way to itself, and no other"
                ));
            }
        }
    }
    Ok(rows.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_make_no_machine_are_refused_with_the_reason() {
        let refusal =
            |counts, cluster, hops: Option<&[Vec<u8>]>| Topology::new(counts, cluster, hops).unwrap_err();
        assert!(refusal([0, 1, 1], None, None).contains("sockets is 0"));
        assert!(refusal([8, 100, 2], None, None).contains("1600 CPUs"));
        assert!(refusal([1, 10, 1], Some(4), None).contains("no multiple"));
        assert!(refusal([2, 512, 1], Some(1), None).contains("1024 clusters"));
        assert!(refusal([2, 1, 1], None, Some(&[vec![0]])).contains("2 rows"));
        assert!(refusal([2, 1, 1], None, Some(&[vec![0, 1], vec![2, 0]])).contains("on the way back"));
        assert!(refusal([2, 1, 1], None, Some(&[vec![0, 0], vec![0, 0]])).contains("to itself"));
    }
}
