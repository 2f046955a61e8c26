package purgatory_test

import (
	"path/filepath"
	"testing"

	"tendril.dev/lib/claim"
	"tendril.dev/proto"
)

// TestReadyOnceEveryRepositoryHasAWorker: who waits until a worker is ready can clone and push
// then, whatever the repository.
func TestReadyOnceEveryRepositoryHasAWorker(t *testing.T) {
	t.Parallel()
	n := open(t, "one", filepath.Join(t.TempDir(), "git"), "", "--worker-ttl=1h")
	idle, err := claim.Join(t.Context(), n.Bus, claim.Options{
		Group: proto.GroupShards, Worker: "idle", Incarnation: "1", Address: "127.0.0.1:1", TTL: n.Settings.WorkerTTL,
	})
	if err != nil {
		t.Fatal(err)
	}
	w := run(t, "one", n)
	if n := w.metric("purgatory_shards_held"); n == proto.Shards {
		t.Fatal("nothing is left to the other worker")
	}
	if why := w.Ready.Failing()["purgatory"]; why != "the workers have not shared out the repositories yet" {
		t.Errorf("while another worker's share is nobody's: %q", why)
	}
	if err := idle.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is ready", func() bool { return w.Ready.Failing()["purgatory"] == "" })
	if n := w.metric("purgatory_shards_held"); n != proto.Shards {
		t.Errorf("ready with %v shards", n)
	}
}
