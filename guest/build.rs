//! Hands the linker the guest's memory layout.

fn main() {
    // At run time: a copied target directory must not link with the script of the tree that it was copied from.
    let directory = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let script = format!("{directory}/link.ld");
    println!("cargo::rerun-if-changed=link.ld");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("none") {
        println!("cargo::rustc-link-arg-bins=-T{script}");
        println!("cargo::rustc-link-arg-bins=--build-id=none");
    }
}
