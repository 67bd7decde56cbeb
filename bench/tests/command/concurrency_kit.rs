//! The locks of Concurrency Kit in `examples/locks/ck`, where its headers are installed.

use std::path::Path;

use crate::support::{Check, apply, ends, has, skip, trial};

#[apply(trial)]
fn locks_of_concurrency_kit_compile_link_and_run() -> Check {
    const HEADER: &str = "/usr/include/ck_spinlock.h";
    if !Path::new(HEADER).exists() {
        return skip(format_args!("there is no {HEADER}: get it with `apt install libck-dev`"));
    }
    has("cc")?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/locks/ck");
    let files = std::fs::read_dir(folder).expect("there are examples");
    let mut locks: Vec<_> = files.map(|file| file.expect("it can be listed").path()).collect();
    locks.retain(|path| path.extension().is_some_and(|it| it == "c"));
    assert_eq!(locks.len(), 8, "{locks:?}");
    for lock in locks {
        runs(lock.to_str().expect("it is UTF-8"), "0%");
        if ["bytelock", "pflock", "rwlock"].iter().any(|name| lock.ends_with(format!("{name}.c"))) {
            runs(lock.to_str().expect("it is UTF-8"), "90%");
        }
    }
    Ok(())
}

/// Runs a lock with more vCPUs than pCPUs, and expects sections and no lost update.
fn runs(lock: &str, readers: &str) {
    let ended = ends(
        0,
        &format!(
            "run --lock 'file:{lock}' --read-share {readers} --no-ideal --format json --engine sim --machine skylake-8s \
             --cpus 0-1 --ratio 4 --window 32ms"
        ),
    );
    let record = ended.json();
    let figure = |name: &str| record["figures"][name].as_f64().expect("a figure");
    assert!(
        figure("acquisitions") > 5.0 && figure("lost_updates") == 0.0,
        "{lock}, {readers} readers: {record}"
    );
}
