package purgatory_test

import (
	"path/filepath"
	"testing"

	"tendril.dev/proto"
)

// TestReadyOnceEveryRepositoryHasAWorker: once a worker is ready, every repository can be cloned
// and pushed to.
func TestReadyOnceEveryRepositoryHasAWorker(t *testing.T) {
	t.Parallel()
	n := open(t, "one", filepath.Join(t.TempDir(), "git"), "", nil)
	workers, err := n.Bus.Bucket(t.Context(), proto.BucketWorkers)
	if err != nil {
		t.Fatal(err)
	}
	idle := proto.ClaimKey(proto.GroupShards, "idle")
	record := `{"name":"idle","address":"127.0.0.1:1","working":true}`
	if _, err := workers.Create(t.Context(), idle, []byte(record)); err != nil {
		t.Fatal(err)
	}
	w := run(t, "one", n)
	if n := w.metric("purgatory_shards_held"); n == proto.Shards {
		t.Fatal("nothing is left to the other worker")
	}
	if why := w.Ready.Failing()["purgatory"]; why != "the workers have not shared out the repositories yet" {
		t.Errorf("while another worker's share has no holder: %q", why)
	}
	if err := workers.Delete(t.Context(), idle); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is ready", func() bool { return w.Ready.Failing()["purgatory"] == "" })
	if n := w.metric("purgatory_shards_held"); n != proto.Shards {
		t.Errorf("ready with %v shards", n)
	}
}
