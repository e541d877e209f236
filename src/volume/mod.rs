//! Opens an image: addresses, superblocks, snapshot; wires the parts and decides nothing.
