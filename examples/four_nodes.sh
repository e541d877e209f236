#!/usr/bin/env bash
# A job of four nodes on one machine: the nodes share their tiers, so that the data set sends each byte about once.
#
#   examples/four_nodes.sh [FOLDER [EPOCHS]]     FOLDER: pictures of yours; otherwise it makes 64 MB of files
#
# It needs the command dlfs. On a cluster, a launcher such as torchrun or srun starts `dlfs read`, or your program with
# dlfs.Loader(..., peers="auto"), once on each node, and tells ranks and the meeting place; here this script does.
set -euo pipefail
epochs=${2:-2}
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$scratch"' EXIT

# 1. The data set: a folder becomes an image. Small chunks, so that each node holds some even of a small data set.
folder=${1:-$scratch/files}
if [ $# = 0 ]; then
    mkdir "$folder"
    for number in {1..500}; do head -c 131072 /dev/urandom > "$folder/$number.bin"; done
fi
dlfs import "$folder" "$scratch/train.dlfs" --chunk-size 1M

# 2. One target serves it over NVMe/TCP, on a free port, and prints its address.
dlfs serve "$scratch/train.dlfs" --listen 127.0.0.1:0 --json > "$scratch/target.json" &
until [ -s "$scratch/target.json" ]; do sleep 0.1; done
address=$(sed 's/.*"address":"\([^"]*\)".*/\1/' "$scratch/target.json")

# 3. Four nodes, each with a tier in memory. They meet in a folder that all of them see; --round names this start of the
#    job. --node names each node: without it, the processes of one machine would be one node and share a tier.
mkdir "$scratch/meet"
ranks=()
for rank in 0 1 2 3; do
    dlfs read "$address" --quiet --rank "$rank" --world-size 4 --epochs "$epochs" --batch-size 16 --seed 7 \
        --tier ram:64M --peers "$scratch/meet" --peer-address 127.0.0.1 --round "start$$" --node "node$rank" --json \
        > "$scratch/$rank.json" &
    ranks+=($!)
done
for rank in "${ranks[@]}"; do wait "$rank"; done

# 4. What each node has read, and from where: its own memory, a peer's, or the target.
python3 - "$scratch" "$epochs" <<'END'
import json, sys

total = 0
for rank in range(4):
    report = json.load(open(f"{sys.argv[1]}/{rank}.json"))
    mb = dict.fromkeys(("memory", "peer", "origin"), 0.0)
    for place in report["places"]["places"]:
        mb[place["place"]] += place["bytes"] / 1e6
    total += mb["origin"]
    print(f"node {rank}: {report['samples']} samples; " + ", ".join(f"{mb[name]:.0f} MB from {name}" for name in mb))
print(f"the target has sent {total:.0f} MB in {sys.argv[2]} epochs")
END
