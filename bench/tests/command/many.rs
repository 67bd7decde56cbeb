//! Hosts of many CPUs on several nodes: 16 runners at once, and memory where it was asked for. `just maintain test-many` emulates such a host.

use serde_json::Value;

use crate::support::*;

/// Fewest CPUs that these tests are about.
const MANY: usize = 16;

/// Ends a test on a host with fewer CPUs, or with one node.
fn many() -> Check {
    kvm()?;
    let cpus = std::thread::available_parallelism().map_or(1, Into::into);
    let node = |node: &u32| std::fs::exists(format!("/sys/devices/system/node/node{node}")).unwrap_or(false);
    let nodes = (0..).take_while(node).count();
    if cpus < MANY || nodes < 2 {
        return skip(format_args!(
            "{cpus} CPUs on {nodes} nodes: `just maintain test-many` emulates {MANY} on two"
        ));
    }
    Ok(())
}

/// Records of a run of a second: long enough where a thread emulates all CPUs.
fn run(more: &str) -> Vec<Value> {
    let run = "run --no-ideal --format json --window 1s --hold 2us --think 20us";
    finished(&format!("{run} {more}")).jsons()
}

#[apply(trial)]
fn vcpus_run_on_sixteen_pcpus_whoever_schedules_them() -> Check {
    many()?;
    for more in [
        "--sched vmm --lock qspinlock --pv on",
        "--sched vmm --lock qspinlock --pv on --slice 100us --locks 16 --min-sections 100",
        "--sched vmm --lock qspinlock-wc --pv on --deschedule holder",
        "--sched vmm --lock ticket --pv off",
        "--sched host --lock qspinlock --pv on",
    ] {
        let record = &run(&format!("--cpus all --ratio 2 {more}"))[0];
        let vcpus = record["per_vcpu"].as_array().unwrap();
        let pcpus = record["settings"]["cpus"].as_array().unwrap().len();
        assert_eq!(vcpus.len(), 2 * pcpus, "{more}");
        // Null for a thread that has ended before the VMM looks at the window's end.
        let run_ns: Vec<u64> = vcpus.iter().filter_map(|vcpu| vcpu["run_ns"].as_u64()).collect();
        let window_ns = record["figures"]["window_ns"].as_u64().unwrap();
        let all: u64 = run_ns.iter().sum();
        assert!(all as f64 <= pcpus as f64 * window_ns as f64 * 1.001, "{more}: {all} ns in {window_ns}");
        assert!(record["figures"]["acquisitions"].as_u64().unwrap() > 0, "{more}");
        // A vCPU that sleeps for the whole window may do so; most have their turn.
        let ran = run_ns.iter().filter(|ns| **ns > 0).count();
        assert!(ran > vcpus.len() / 2, "{more}: {ran} of {} vCPUs ran", vcpus.len());
        match record["settings"]["sched"].as_str() {
            Some("vmm") => nodes_add_up(record),
            _ => assert!(record["figures"]["node_0_vcpus"].is_null(), "the kernel moves threads"),
        }
    }
}

/// Time that all vCPUs ran.
fn run_ns(record: &Value) -> u64 {
    record["per_vcpu"].as_array().unwrap().iter().map(|vcpu| vcpu["run_ns"].as_u64().unwrap()).sum()
}

/// Two nodes have done together what all vCPUs did, and each of them has done a part.
pub(crate) fn nodes_add_up(record: &Value) {
    let figures = &record["figures"];
    assert!(figures["node_2_vcpus"].is_null(), "two nodes: {figures}");
    let of =
        |key: &str| [0, 1].map(|node| figures[format!("node_{node}_{key}")].as_u64().expect("two nodes"));
    let sum = |key: &str| of(key).iter().sum::<u64>();
    let vcpus = record["per_vcpu"].as_array().unwrap().len();
    assert_eq!(sum("vcpus"), vcpus as u64, "{figures}");
    assert_eq!(sum("acquisitions"), figures["acquisitions"], "{figures}");
    assert_eq!(sum("run_ns"), run_ns(record), "{figures}");
    assert!(of("run_ns").iter().all(|ns| *ns > 0), "{figures}");
}

#[apply(trial)]
fn several_guests_share_sixteen_pcpus() -> Check {
    many()?;
    for share in ["vcpu", "guest"] {
        let guests = run(&format!("--cpus all --guests 2 --ratio 1 --share {share}"));
        let ran: Vec<u64> = guests.iter().map(run_ns).collect();
        assert!(ran.len() == 2 && ran.iter().all(|ns| *ns > 0), "{share}: {ran:?}");
    }
}

#[apply(trial)]
fn memory_lies_on_the_nodes_that_were_asked_for() -> Check {
    many()?;
    for (choice, expected) in [
        ("--cpus all --numa interleave", &["0", "1"][..]),
        ("--cpus all --numa 1", &["1"]),
        ("--cpus node:0 --numa 1", &["1"]),
        ("--cpus node:1", &["1"]),
        // Each vCPU's memory is on the node of the pCPU that runs it first.
        ("--cpus all --numa local", &["0", "1"]),
    ] {
        let record = &run(choice)[0];
        let of_node = |(name, bytes): (&String, &Value)| {
            let node = name.strip_prefix("memory_node_")?.strip_suffix("_bytes")?;
            (bytes.as_u64() > Some(0)).then(|| node.to_owned())
        };
        let nodes = record["figures"].as_object().unwrap().iter().filter_map(of_node);
        assert_eq!(nodes.collect::<Vec<_>>(), expected, "{choice}");
    }
}
