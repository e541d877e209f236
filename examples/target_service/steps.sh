#!/usr/bin/env bash
# From a folder of files to a target that runs as a service, and to a host that proves itself with a key.
#
#   examples/target_service/steps.sh [FOLDER]
#
# Here everything lies in a scratch folder, on a free port of 127.0.0.1, without root. On a machine with systemd the
# lines that begin with `as root:` say what takes the place of each step.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(realpath "${1:-$here}")
scratch=$(mktemp -d)
cd "$scratch"
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$scratch"' EXIT

# 1. The image.                 as root: mkdir /etc/dlfs; useradd --system dlfs; put it where dlfs may read it
dlfs import "$folder" train.dlfs

# 2. Keys: one proves the host to the target, the other the target to the host. Only their owners may read them.
#                               as root: the same in /etc/dlfs; chown dlfs hosts.toml; give node7 both keys
(
    umask 077
    dlfs key gen > host.key
    dlfs key gen > target.key
    cat > hosts.toml <<END
[[host]]
nqn = "nqn.2026-11.com.example:node7"
dhchap_secret = "$(cat host.key)"
dhchap_ctrl_secret = "$(cat target.key)"
END
)

# 3. The configuration, checked before it serves.
#                               as root: cp targets.toml /etc/dlfs; cp dlfs-serve.service /etc/systemd/system
sed -e 's/^listen = .*/listen = "127.0.0.1:0"/' -e 's|"/var/log/dlfs/|"|' "$here/targets.toml" > targets.toml
dlfs serve --config targets.toml --check

# 4. The service.               as root: systemctl enable --now dlfs-serve
dlfs serve --config targets.toml --control control.sock &
service=$!
until dlfs ctl --socket control.sock list-subsys > subsystems 2>/dev/null; do sleep 0.1; done
cat subsystems
port=$(grep -o '127\.0\.0\.1:[0-9]*' subsystems | head -n 1)

# 5. The host reads with its key. Over a network that others can read, add --tls-key or --concat: docs/operations.md.
address=nvme-tcp://$port/nqn.2026-11.io.dlfs:train
node7=(--hostnqn nqn.2026-11.com.example:node7 --dhchap-secret host.key --dhchap-ctrl-secret target.key)
dlfs read "$address" "${node7[@]}" --epochs 2

# 6. With another key, or under another name, nobody does; the access log has a line for each.
dlfs key gen > other.key && chmod 600 other.key
if dlfs stat "$address" --hostnqn nqn.2026-11.com.example:node7 --dhchap-secret other.key; then exit 1; fi
if dlfs stat "$address" --hostnqn nqn.2026-11.com.example:node8; then exit 1; fi
grep -c '"event":"not-authenticated"\|"event":"refused"' access.jsonl

# 7. A data set is added.       as root: edit targets.toml; systemctl reload dlfs-serve
cp train.dlfs more.dlfs
printf '\n[[subsystem.namespace]]\nnsid = 2\naddress = "more.dlfs"\n' >> targets.toml
dlfs ctl --socket control.sock reload
dlfs verify "$address?ns=2" "${node7[@]}"

# 8. The end: hosts are sent away, and the service ends with 0.       as root: systemctl stop dlfs-serve
dlfs ctl --socket control.sock drain
wait "$service"
