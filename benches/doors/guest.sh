# shellcheck shell=dash
# Runs in the guest of the part `guest`: each line of /lab/plan is a data set, as the namespace of an ext4 and as
# that of an image. Prints what it measured as lines "MEASURED DATASET SIDE FILES_A_SECOND".

# device NSID: its block device; the kernel numbers them as it finds them.
device() {
    for block in /sys/block/nvme*n*; do
        case ${block##*/} in nvme*c*n*) continue ;; esac # a path of a namespace, not its device
        if [ "$(cat "$block/nsid")" = "$1" ]; then echo "/dev/${block##*/}"; fi
    done
}

# pass DATASET SIDE FOLDER WORDS...: the files of the data set, below the folder and in their order, with cold caches.
# WORDS go to the loader.
pass() {
    dataset=$1 side=$2 folder=$3
    shift 3
    sync
    echo 3 >/proc/sys/vm/drop_caches
    rate=$(/lab/ld-linux-x86-64.so.2 --library-path /lab "$@" \
        /lab/doors --side listed --folder "$folder" --paths "/lab/$dataset.list") || exit 1
    echo "MEASURED $dataset $side $rate"
}

while read -r dataset ext4 image rounds; do
    mount -t ext4 -o ro,noload "$(device "$ext4")" /mnt || exit 1
    while [ "$rounds" -ge 0 ]; do
        pass "$dataset" ext4 /mnt
        (
            export DLFS_MOUNTS="/shown=nvme-tcp://$TRADDR:$TRSVCID/$NQN?ns=$image"
            export DLFS_ORDER="/lab/$dataset.order" DLFS_REPORT=-
            pass "$dataset" preload /shown --preload /lab/libdlfs_preload.so
        ) || exit 1
        rounds=$((rounds - 1))
    done
    umount /mnt
done </lab/plan
