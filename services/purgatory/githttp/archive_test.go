package githttp_test

import (
	"strings"
	"testing"

	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/test/fixture/gittest"
)

// TestArchiveOfATag is a .tar.gz of the tag's files that a client need not load again, and of
// nothing but tags.
func TestArchiveOfATag(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	h.repo("a b")
	w := gittest.NewWork(t)
	tip := w.Commit("file", "content")
	w.Git("tag", "rc/1")
	w.Git("push", h.at("a b"), "main", "rc/1")
	at := h.at("a b") + "/archive/"
	status, header, body := h.send("GET", at+"rc%2F1.tar.gz", nil)
	if status != 200 || header.Get("Content-Type") != "application/gzip" || !strings.HasPrefix(body, "\x1f\x8b") ||
		header.Get("ETag") != `"`+tip+`"` || header.Get("Content-Disposition") != `attachment; filename="a-b-rc-1.tar.gz"` {
		t.Fatalf("%d %v %.20q", status, header, body)
	}
	if _, _, again := h.send("GET", at+"rc%2F1.tar.gz", nil); again != body {
		t.Error("the same tag gives other bytes")
	}
	for request, want := range map[string]int{
		"HEAD rc%2F1.tar.gz": 200, "GET main.tar.gz": 404, "GET " + tip + ".tar.gz": 404, "GET rc.tar.gz": 404, "GET .tar.gz": 404,
		"GET --output%3Dx.tar.gz": 404, "POST rc%2F1.tar.gz": 405,
	} {
		method, name, _ := strings.Cut(request, " ")
		if status, header, body := h.send(method, at+name, nil); status != want || method == "HEAD" && (body != "" || header.Get("ETag") == "") {
			t.Errorf("%s: %d %q, want %d", request, status, body, want)
		}
	}
	if status, _, _ := h.send("GET", at+"rc%2F1.tar.gz", nil, "If-None-Match", header.Get("ETag")); status != 304 {
		t.Errorf("what the client has is sent again: %d", status)
	}
	if n := h.operations("archive", "ok"); n < 2 {
		t.Errorf("counted %v times", n)
	}
}
