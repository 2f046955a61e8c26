package purgatory_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository/gittest"
)

// TestWhatNobodyWantedIsNotKept: a server that sends anything but what it is asked for fills no disk, and does not make an announcement look as if its
// data had come.
func TestWhatNobodyWantedIsNotKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--hunt-backoff-base=20ms", "--hunt-backoff-max=20ms")
	work, root := gittest.NewWork(t), t.TempDir()
	other := work.Commit("a", "1")
	work.Publish(root, "x.git")
	backend, err := url.Parse(gittest.Backend(t, root).URL)
	if err != nil {
		t.Fatal(err)
	}
	wanted := strings.Repeat("d", 40)
	pass := httputil.NewSingleHostReverseProxy(backend)
	liar := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		r.Body = io.NopCloser(bytes.NewReader(bytes.ReplaceAll(body, []byte(wanted), []byte(other))))
		pass.ServeHTTP(rw, r)
	}))
	t.Cleanup(liar.Close)
	ann := announcement(t, "announcement", alice, "x", liar.URL+"/x.git")
	w.in.holds("x", ann, proto.SourceLive, time.Hour)
	w.in.holds("x", state("state", alice, "x", 1001, wanted), proto.SourceLive, time.Hour)
	eventually(t, "several attempts have failed", func() bool { return w.told.count("x failed") >= 3 })
	w.stop()
	if data, err := w.repo(alice, "x").HasData(t.Context()); err != nil || data {
		t.Errorf("has data: %v, %v", data, err)
	}
	if n := w.in.times(ann.ID); n != 0 {
		t.Errorf("the announcement was released %d times", n)
	}
	if n := w.metric("purgatory_sync_attempts_total", "no_such_object"); n < 3 {
		t.Errorf("%v such attempts were counted", n)
	}
}
