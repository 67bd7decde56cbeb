#!/usr/bin/env bash
# Makes target/dist/haltkick-VERSION-x86_64-linux.tar.gz: a static haltkick with the guest inside, man pages, completions,
# documentation, licences and a bill of materials, and its checksum next to it. It is the same bytes for the same commit and the same
# Rust, wherever it is built.
set -euo pipefail
cd "$(dirname "$0")/.."
target=x86_64-unknown-linux-musl
rustup target list --installed | grep -qx "$target" || rustup target add "$target"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
name=haltkick-$version-x86_64-linux
dist=$PWD/target/dist
stage=$dist/$name
rm -rf "$stage" "$stage.tar.gz" "$stage.tar.gz.sha256"

# Neither where the sources lie nor whose home they are built from is to be seen in the program. Only the program is stripped: by a
# variable of the environment the guest would be too, and its symbols are what explanations are made of.
export RUSTFLAGS="--remap-path-prefix=$PWD=/haltkick --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo --remap-path-prefix=$(rustc --print sysroot)=/rust"
cargo build --release --locked --package haltkick --features schema --target "$target" --target-dir "$dist/build" --config 'profile.release.strip=true'

mkdir -p "$stage"/{bin,share/man/man1,share/bash-completion/completions,share/zsh/site-functions,share/fish/vendor_completions.d,docs}
haltkick=$stage/bin/haltkick
cp "$dist/build/$target/release/haltkick" "$haltkick"
if readelf --section-headers --wide "$haltkick" | grep -q ' \.symtab '; then
    echo "just dist: the program was not stripped: its symbols are not the same in every build" >&2
    exit 1
fi
"$haltkick" man --dir "$stage/share/man/man1"
"$haltkick" completions bash >"$stage/share/bash-completion/completions/haltkick"
"$haltkick" completions zsh >"$stage/share/zsh/site-functions/_haltkick"
"$haltkick" completions fish >"$stage/share/fish/vendor_completions.d/haltkick.fish"
cp README.md CHANGELOG.md CITATION.cff SECURITY.md LICENSE-MIT LICENSE-APACHE "$stage"
cp docs/*.md docs/*.svg "$stage/docs"
cp -r docs/pictures docs/studies "$stage/docs"
python3 bench/scripts/licences.py "$target" >"$stage/LICENSES-THIRD-PARTY.txt"
python3 bench/scripts/licences.py "$target" --bill >"$stage/sbom.cdx.json"

# Everything bears the time of the commit, and belongs to nobody.
chmod -R u=rwX,go=rX "$stage"
tar --sort=name --mtime="@$(git log -1 --format=%ct)" --owner=0 --group=0 --numeric-owner --format=ustar -C "$dist" -cf - "$name" |
    gzip -n -9 >"$stage.tar.gz"
(cd "$dist" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256" && cat "$name.tar.gz.sha256")
