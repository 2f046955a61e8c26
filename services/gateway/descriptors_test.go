package gateway

import "testing"

// TestConnectionsFitTheDescriptors: with any limit of file descriptors, all connections leave
// some for git, the index and NATS, and where the limit is high nothing is lowered.
func TestConnectionsFitTheDescriptors(t *testing.T) {
	t.Parallel()
	for limit, want := range map[uint64][2]int{
		1 << 20:   {4096, 4096},
		1<<64 - 1: {4096, 4096},
		32768:     {4096, 4096},
		16384:     {9216, 1024}, // where as many are wanted
		4096:      {2304, 256},
		1024:      {468, 52},
		256:       {1, 16},
	} {
		wanted := 4096
		if limit == 16384 {
			wanted = 100_000
		}
		sockets, others := connectionsWithin(limit, wanted, 4096)
		if sockets != want[0] || others != want[1] {
			t.Errorf("with %d descriptors: %d WebSockets and %d others, want %v", limit, sockets, others, want)
		}
		if used := sockets + others*requestDescriptors; limit > 2*ownDescriptors && uint64(used+ownDescriptors) > limit {
			t.Errorf("with %d descriptors clients take %d", limit, used)
		}
	}
}
