//! The FUSE operations: lookups, attributes and listings are answered from the file tree, reads by `reads.rs`, and
//! opens by `passthrough.rs`.
//!
//! The counters of opens and reads cover only requests that reach FUSE: not the reads that the kernel answers from its
//! page cache or by passthrough.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dlfs::dataset::{EpochCounts, Files};
use dlfs::posix::{Attributes, FIRST, Folder, Found, MAX_COMPONENT_BYTES, Node, PathError, ROOT};
use dlfs::{Error, ErrorKind};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Generation, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyXattr, Request,
};

use crate::passthrough::Passthrough;
use crate::reads::{ReadRequest, Reads};

/// The operations of the file system. Several threads of the session call them at once.
pub(crate) struct Filesystem {
    files: Arc<Files>,
    reads: Arc<Reads>,
    /// Lets the kernel itself read long files. `None` without passthrough: files then need no open.
    passthrough: Option<Passthrough>,
    /// True if listings may include attributes, that is, without fields: with fields, each length would take a
    /// read of the sample.
    lists_attributes: bool,
    /// Bytes that the image uses, for `statfs`.
    len_bytes: u64,
    /// The user and the group of this process, which own all files.
    owner: u32,
    group: u32,
}

impl Filesystem {
    pub(crate) fn new(
        files: Arc<Files>,
        reads: Arc<Reads>,
        passthrough: Option<Passthrough>,
    ) -> Filesystem {
        let superblocks = files.dataset().image().superblocks();
        let len_bytes = dlfs::format::superblock::used_bytes(superblocks);
        let has_fields = !files.dataset().directory().fields().is_empty();
        Filesystem {
            reads,
            // Passthrough needs lengths, and a field's length is unknown until its sample is read.
            passthrough: passthrough.filter(|_| !has_fields),
            lists_attributes: !has_fields,
            files,
            len_bytes,
            owner: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
        }
    }

    fn node(&self, inode: INodeNo) -> Result<Node, Errno> {
        self.files.tree().node(inode.0).ok_or(Errno::ESTALE)
    }

    fn folder(&self, inode: INodeNo) -> Result<Folder, Errno> {
        match self.node(inode)? {
            Node::Folder(folder) => Ok(folder),
            Node::File(_) => Err(Errno::ENOTDIR),
        }
    }

    /// Calls `add` with the entries of a folder from `offset` on, until it returns `false`.
    fn list(
        &self,
        inode: INodeNo,
        offset: u64,
        add: &mut dyn FnMut(Found<'_>) -> bool,
    ) -> Result<(), Errno> {
        self.files.tree().list(self.folder(inode)?, offset, add).map_err(|_| Errno::EIO)
    }

    fn attributes(&self, node: Node) -> Result<FileAttr, Errno> {
        let attributes = self.files.attributes(node, &mut ());
        Ok(self.file_attr(attributes.map_err(|error| errno_of(&error))?, node))
    }

    /// The attributes in the kernel's form.
    fn file_attr(&self, attributes: Attributes, node: Node) -> FileAttr {
        let time: SystemTime = UNIX_EPOCH + Duration::from_nanos(attributes.modified_ns);
        FileAttr {
            ino: INodeNo(attributes.inode),
            size: attributes.len_bytes,
            blocks: attributes.blocks(),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: kind_of(node),
            perm: (attributes.mode & 0o7777) as u16,
            nlink: 1, // also of folders: subfolders are not counted
            uid: self.owner,
            gid: self.group,
            rdev: 0,
            blksize: BLOCK_BYTES,
            flags: 0,
        }
    }

    fn find(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let folder = self.folder(parent)?;
        let child = self.files.tree().child(folder, name.as_bytes()).map_err(|error| match error {
            PathError::NotFound => Errno::ENOENT,
            PathError::NotFolder => Errno::ENOTDIR,
            PathError::NameTooLong => Errno::ENAMETOOLONG,
            PathError::Names(_) => Errno::EIO,
        });
        self.attributes(child?)
    }

    fn xattr(&self, inode: INodeNo, name: &OsStr) -> Result<Vec<u8>, Errno> {
        if inode.0 == ROOT && name == ORDER {
            return self.reads.order().map(String::into_bytes).ok_or(Errno::ENODATA);
        }
        if inode.0 == ROOT && name == EPOCHS {
            return Ok(EpochCounts::to_json(&self.files.epochs_so_far()).into_bytes());
        }
        let value = self.files.xattr(self.node(inode)?, name.as_bytes());
        value.map(String::into_bytes).ok_or(Errno::ENODATA)
    }
}

impl fuser::Filesystem for Filesystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = vec![
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_MAX_PAGES,
            InitFlags::FUSE_NO_OPENDIR_SUPPORT,
        ];
        if self.passthrough.is_some() {
            let can = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
                && config.set_max_stack_depth(1).is_ok();
            self.passthrough = self.passthrough.take().filter(|_| can);
        }
        if self.passthrough.is_none() {
            wanted.push(InitFlags::FUSE_NO_OPEN_SUPPORT);
        }
        if self.lists_attributes {
            wanted.push(InitFlags::FUSE_DO_READDIRPLUS);
            wanted.push(InitFlags::FUSE_READDIRPLUS_AUTO);
        }
        for flag in wanted {
            let _ = config.add_capabilities(flag); // an older kernel works without it
        }
        let _ = config.set_max_background(MAX_BACKGROUND); // the kernel may take fewer
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(parent, name) {
            Ok(attributes) => reply.entry(&FOR_EVER, &attributes, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.node(inode).and_then(|node| self.attributes(node)) {
            Ok(attributes) => reply.attr(&FOR_EVER, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    /// Without passthrough, answers ENOSYS: from then on, the kernel opens files without a request.
    fn open(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match (&self.passthrough, self.node(inode)) {
            (None, _) => reply.error(Errno::ENOSYS),
            (Some(passthrough), Ok(Node::File(file))) => {
                self.files.opened(file, None);
                passthrough.open(inode.0, file, reply);
            }
            (Some(_), Ok(Node::Folder(_))) => reply.error(Errno::EISDIR),
            (Some(_), Err(errno)) => reply.error(errno),
        }
    }

    fn release(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(passthrough) = &self.passthrough {
            passthrough.release(inode.0);
        }
        reply.ok();
    }

    /// Always answers ENOSYS: the kernel then opens folders without a request, and caches listings.
    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.node(inode) {
            Ok(Node::File(file)) => {
                let opens = offset == 0 && self.passthrough.is_none();
                let asked = Instant::now();
                self.reads.read(ReadRequest { file, offset, size, asked, opens, reply })
            }
            Ok(Node::Folder(_)) => reply.error(Errno::EISDIR),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let tree = self.files.tree();
        let listed = self.list(inode, offset, &mut |found| {
            let inode = INodeNo(tree.inode(found.node));
            !reply.add(inode, found.next, kind_of(found.node), OsStr::from_bytes(found.name))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let tree = self.files.tree();
        let mut left = if offset == FIRST { FIRST_WITH_ATTRIBUTES } else { usize::MAX };
        let listed = self.list(inode, offset, &mut |found| {
            if left == 0 {
                return false;
            }
            left -= 1;
            // Without fields this reads no sample; with fields, the kernel does not send this request.
            let attributes = self.file_attr(tree.attributes(found.node, None), found.node);
            let name = OsStr::from_bytes(found.name);
            !reply.add(attributes.ino, found.next, name, &FOR_EVER, &attributes, Generation(0))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let files = self.files.tree().num_files();
        let blocks = self.len_bytes.div_ceil(STATFS_BLOCK_BYTES.into());
        let name_len = MAX_COMPONENT_BYTES as u32;
        reply.statfs(blocks, 0, 0, files, 0, BLOCK_BYTES, name_len, STATFS_BLOCK_BYTES);
    }

    fn getxattr(&self, _: &Request, inode: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        reply_xattr(self.xattr(inode, name), size, reply);
    }

    fn listxattr(&self, _: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.node(inode).map(|node| {
            let mut names = self.files.xattr_names(node);
            if inode.0 == ROOT {
                let order = self.reads.order().map_or(String::new(), |_| format!("{ORDER}\0"));
                names.extend_from_slice(format!("{EPOCHS}\0{order}").as_bytes());
            }
            names
        });
        reply_xattr(names, size, reply);
    }
}

/// Answers with the value; with its length if `size` is 0; with ERANGE if it is longer than `size` bytes.
fn reply_xattr(bytes: Result<Vec<u8>, Errno>, size: u32, reply: ReplyXattr) {
    match bytes {
        Err(errno) => reply.error(errno),
        Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
    }
}

fn kind_of(node: Node) -> FileType {
    match node {
        Node::Folder(_) => FileType::Directory,
        Node::File(_) => FileType::RegularFile,
    }
}

/// The error number for a program.
pub(crate) fn errno_of(error: &Error) -> Errno {
    match error.kind() {
        ErrorKind::NotFound => Errno::ENOENT,
        ErrorKind::Refused => Errno::EACCES,
        ErrorKind::Busy => Errno::EBUSY,
        ErrorKind::Stale => Errno::ESTALE,
        ErrorKind::TimedOut => Errno::ETIMEDOUT,
        ErrorKind::OutOfMemory => Errno::ENOMEM,
        _ => Errno::EIO,
    }
}

/// The extended attribute of the top folder with the counters of each epoch.
const EPOCHS: &str = "user.dlfs.epochs";
/// The extended attribute of the top folder with the counters of readahead along an order.
const ORDER: &str = "user.dlfs.order";
/// The first answer of a listing has the attributes of at most this many entries. The kernel asks for attributes
/// at the start of each folder, and makes an inode of each entry, which costs more than the rest of the
/// listing. It asks for the attributes of later entries only if the program has looked at the first ones.
const FIRST_WITH_ATTRIBUTES: usize = 64;
/// Validity of the kernel's caches: a generation never changes.
const FOR_EVER: Duration = Duration::from_secs(1 << 31);
/// The size of reads that programs are advised to use: the kernel's default readahead.
const BLOCK_BYTES: u32 = 128 << 10;
/// The unit in which `statfs` counts the image's length.
const STATFS_BLOCK_BYTES: u32 = 4096;
/// The most readahead requests at once, of all files together.
const MAX_BACKGROUND: u16 = 128;
