//! How bytes lie on media: superblock, chunk header, directory snapshot; pure.
