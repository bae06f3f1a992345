#!/usr/bin/env bash
# Builds the page that runs parkade in a browser: the folder target/web/site, to be published, and the single file target/web/parkade.html.
# Needs the target wasm32-unknown-unknown and Node.js; README.md says how to get the target, also without rustup.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --locked -p parkade-web --profile web --target wasm32-unknown-unknown
node web/assemble.mjs "${CARGO_TARGET_DIR:-target}/wasm32-unknown-unknown/web/parkade_web.wasm" "${1:-target/web}"
