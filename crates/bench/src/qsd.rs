//! `qemu-storage-daemon`, the server that others are measured beside.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::process::Server;

/// What one export of it stands for.
#[derive(Clone, Debug)]
pub(crate) enum QsdNode {
    /// An image.
    File {
        path: PathBuf,
        /// `io_uring`, `native` or `threads`.
        aio: String,
        /// Past the page cache.
        direct: bool,
    },
    /// A part of a block device, by io_uring and past the page cache.
    Part { device: PathBuf, offset: u64, bytes: u64 },
    /// Nothing: requests are answered at once (`null-co`).
    Null { bytes: u64 },
}

/// One export.
#[derive(Clone, Debug)]
pub(crate) struct QsdDisk {
    pub(crate) node: QsdNode,
    /// Bytes per second that it is held to, by a throttle group of its own.
    pub(crate) cap_bytes_s: Option<u64>,
}

/// Starts it with one vhost-user-blk export for each disk, at `dir/NAME-INDEX.sock`.
///
/// # Errors
///
/// As [`Server::evenkeel`].
pub(crate) fn start(dir: &Path, name: &str, disks: &[QsdDisk], vrings: u16) -> Result<Server> {
    let mut arguments = Vec::new();
    let mut sockets = Vec::new();
    for (index, disk) in disks.iter().enumerate() {
        let socket = dir.join(format!("{name}-{index}.sock"));
        arguments.extend(disk_arguments(index, disk, &socket, vrings));
        sockets.push(socket);
    }
    let binary = Path::new("qemu-storage-daemon");
    Server::start(binary, arguments, sockets, dir.join(format!("{name}.log")))
}

fn disk_arguments(index: usize, disk: &QsdDisk, socket: &Path, vrings: u16) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut say = |option: &str, value: String| {
        arguments.push(format!("--{option}"));
        arguments.push(value);
    };
    let mut top = format!("disk{index}");
    match &disk.node {
        QsdNode::File { path, aio, direct } => {
            let direct = if *direct { "on" } else { "off" };
            // A comma begins the next option; two are one comma.
            let path = path.display().to_string().replace(',', ",,");
            say(
                "blockdev",
                format!(
                    "driver=file,node-name=file{index},filename={path},cache.direct={direct},\
                     aio={aio},discard=unmap"
                ),
            );
            say("blockdev", format!("driver=raw,node-name={top},file=file{index}"));
        }
        QsdNode::Part { device, offset, bytes } => {
            // Whoever has the other part must not be kept out.
            say(
                "blockdev",
                format!(
                    "driver=host_device,node-name=file{index},filename={},cache.direct=on,\
                     aio=io_uring,locking=off",
                    device.display()
                ),
            );
            let part = format!("offset={offset},size={bytes}");
            say("blockdev", format!("driver=raw,node-name={top},file=file{index},{part}"));
        }
        QsdNode::Null { bytes } => {
            let driver = "driver=null-co,read-zeroes=off";
            say("blockdev", format!("{driver},node-name={top},size={bytes}"));
        }
    }
    if let Some(cap) = disk.cap_bytes_s {
        say("object", format!("throttle-group,id=cap{index},limits.bps-total={cap}"));
        let group = format!("throttle-group=cap{index}");
        say("blockdev", format!("driver=throttle,node-name=held{index},{group},file={top}"));
        top = format!("held{index}");
    }
    let address = format!("addr.type=unix,addr.path={}", socket.display());
    say(
        "export",
        format!(
            "type=vhost-user-blk,id=export{index},node-name={top},{address},writable=on,\
             num-queues={vrings}"
        ),
    );
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_stands_between_the_export_and_the_image() {
        let path = PathBuf::from("a,b.img");
        let node = QsdNode::File { path, aio: "native".to_owned(), direct: true };
        let disk = QsdDisk { node, cap_bytes_s: Some(5_000_000) };
        let arguments = disk_arguments(1, &disk, Path::new("run/d.sock"), 4);
        let values: Vec<&str> = arguments.iter().skip(1).step_by(2).map(String::as_str).collect();
        assert_eq!(
            values,
            [
                "driver=file,node-name=file1,filename=a,,b.img,cache.direct=on,aio=native,\
                 discard=unmap",
                "driver=raw,node-name=disk1,file=file1",
                "throttle-group,id=cap1,limits.bps-total=5000000",
                "driver=throttle,node-name=held1,throttle-group=cap1,file=disk1",
                "type=vhost-user-blk,id=export1,node-name=held1,addr.type=unix,\
                 addr.path=run/d.sock,writable=on,num-queues=4",
            ]
        );
    }

    #[test]
    fn a_part_of_a_device_leaves_the_rest_to_others() {
        let device = PathBuf::from("/dev/loop3");
        let node = QsdNode::Part { device, offset: 4096, bytes: 8192 };
        let disk = QsdDisk { node, cap_bytes_s: None };
        let arguments = disk_arguments(0, &disk, Path::new("d.sock"), 1);
        assert_eq!(
            arguments[1],
            "driver=host_device,node-name=file0,filename=/dev/loop3,cache.direct=on,\
             aio=io_uring,locking=off"
        );
        assert_eq!(arguments[3], "driver=raw,node-name=disk0,file=file0,offset=4096,size=8192");
    }
}
