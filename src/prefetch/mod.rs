//! Keeps batches ready along an order, bounded by bytes.
