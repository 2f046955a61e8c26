//go:build !linux

package repository

// limitMemory does nothing where the memory of another process cannot be bounded.
func limitMemory(int, int64) error { return nil }
