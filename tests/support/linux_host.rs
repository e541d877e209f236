//! Shell functions that the scripts of Linux guests share when they connect to our target.

/// Functions of the guest's shell: `connects PORT NQN [OPTION...]`, and `device NQN`, the block device of a subsystem.
pub const CONNECTS: &str = r#"
connects() {
    port=$1 nqn=$2
    shift 2
    nvme connect -t tcp -a "$TRADDR" -s "$port" -n "$nqn" -i 1 --hostnqn "$HOSTNQN" --hostid "$HOSTID" "$@"
}
device() {
    for s in /sys/class/nvme-subsystem/nvme-subsys*; do
        [ "$(cat "$s/subsysnqn")" = "$1" ] && echo "/dev/nvme${s##*subsys}n1"
    done
}
"#;
