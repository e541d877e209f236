//! Which sample comes next: keyed permutations, epochs, shards by rank, resume; pure.
