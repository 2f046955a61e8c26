package smarthttp

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/nbd-wtf/go-nostr/nip19"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"tendril.dev/lib/nostr"
)

func lines(ls ...string) string {
	var b strings.Builder
	for _, l := range ls {
		switch l {
		case "0000", "0001", "0002":
			b.WriteString(l)
		default:
			b.WriteString(pktLine(l))
		}
	}
	return b.String()
}

func TestNegotiation(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("a", 40)
	for name, c := range map[string]struct {
		request, response, result, want string
	}{
		"v2 ls-refs": {lines("command=ls-refs\n", "agent=git\n", "0001", "peel\n", "ref-prefix refs/heads/\n", "0000"),
			lines(id+" refs/heads/main\n", "0000"), resultOK, ""},
		"v2 clone": {lines("command=fetch", "agent=git", "0001", "thin-pack", "want "+id+"\n", "done\n", "0000"),
			lines("packfile\n", "\x02Counting", "\x01PACK...", "0000"), resultOK, "clone"},
		"v2 a round of a fetch": {lines("command=fetch", "0001", "want "+id+"\n", "have "+id+"\n", "0000"),
			lines("acknowledgments\n", "ACK "+id+"\n", "0000"), resultOK, ""},
		"v2 the round that brings the pack": {lines("command=fetch", "0001", "want "+id+"\n", "have "+id+"\n", "done\n", "0000"),
			lines("packfile\n", "\x01PACK...", "0000"), resultOK, "fetch"},
		"v2 without done": {lines("command=fetch", "0001", "want "+id+"\n", "have "+id+"\n", "0000"),
			lines("acknowledgments\n", "ACK "+id+"\n", "ready\n", "0001", "packfile\n", "\x01PACK", "0000"), resultOK, "fetch"},
		"v2 deepening":      {lines("command=fetch", "0001", "want "+id+"\n", "shallow "+id+"\n", "done\n", "0000"), lines("packfile\n", "\x01PACK"), resultOK, "fetch"},
		"v0 clone":          {lines("want "+id+" side-band-64k\n", "0000", "done\n"), lines("NAK\n", "\x01PACK"), resultOK, "clone"},
		"v0 fetch":          {lines("want "+id+" side-band-64k\n", "0000", "have "+id+"\n", "done\n"), lines("ACK "+id+"\n", "\x02x"), resultOK, "fetch"},
		"v0 without bands":  {lines("want "+id+"\n", "0000", "done\n"), lines("NAK\n") + "PACK\x00\x00\x00\x02", resultOK, "clone"},
		"a clone cut off":   {lines("command=fetch", "0001", "want "+id+"\n", "done\n", "0000"), lines("packfile\n", "\x01PACK"), resultGone, "clone"},
		"no process for it": {lines("command=fetch", "0001", "want "+id+"\n", "have "+id+"\n", "done\n", "0000"), "", resultBusy, "fetch"},
		"nonsense":          {"GET / HTTP/1.1", "", resultError, ""},
		"nothing":           {"", "", resultError, ""},
	} {
		for how, reader := range map[string]func(string) io.Reader{
			"whole": func(s string) io.Reader { return strings.NewReader(s) },
			"bytes": func(s string) io.Reader { return iotest.OneByteReader(strings.NewReader(s)) },
		} {
			var talk negotiation
			for watch, said := range map[*packetLines]string{talk.request(): c.request, talk.response(): c.response} {
				if n, err := io.Copy(watch, reader(said)); err != nil || int(n) != len(said) {
					t.Errorf("%s, %s: %d of %d, %v", name, how, n, len(said), err)
				}
			}
			if got := talk.user(c.result); got != c.want {
				t.Errorf("%s, %s: %q, want %q", name, how, got, c.want)
			}
		}
	}
}

// FuzzPacketLines: whatever comes by, all of it passes, in any pieces, and only beginnings are
// kept.
func FuzzPacketLines(f *testing.F) {
	f.Add([]byte("0009want \x00\x00000"), 3)
	f.Fuzz(func(t *testing.T, data []byte, cut int) {
		cut = min(max(cut, 0), len(data))
		var whole, pieces []string
		note := func(to *[]string) *packetLines {
			return &packetLines{see: func(line []byte) bool { *to = append(*to, string(line)); return len(*to) < 100 }}
		}
		note(&whole).Write(data)
		l := note(&pieces)
		for _, p := range [][]byte{data[:cut], data[cut:]} {
			if n, err := l.Write(p); n != len(p) || err != nil || len(l.line) > maxSeen {
				t.Fatalf("%d of %d, %v; kept %d", n, len(p), err, len(l.line))
			}
		}
		if fmt.Sprint(whole) != fmt.Sprint(pieces) {
			t.Errorf("whole %q, in pieces %q", whole, pieces)
		}
	})
}

func TestTrafficNamesTheTop(t *testing.T) {
	t.Parallel()
	owner := strings.Repeat("1", 64)
	ref := func(i int) nostr.RepoRef { return nostr.RepoRef{PubKey: owner, Identifier: fmt.Sprintf("r%d", i)} }
	top := newTraffic(2)
	for i := range 5 {
		top.add(ref(i), i*10)
	}
	top.add(ref(1), 100)
	npub, err := nip19.EncodePublicKey(owner)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.ReplaceAll(`# HELP ngit_git_top_repos_bytes Bytes exchanged with git clients since the start, of the repositories with the most.
# TYPE ngit_git_top_repos_bytes gauge
ngit_git_top_repos_bytes{repo="NPUB/r1"} 110
ngit_git_top_repos_bytes{repo="NPUB/r4"} 40
`, "NPUB", npub)
	if err := testutil.CollectAndCompare(top, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	for i := range maxCounted + 10 {
		top.add(ref(i), 1)
	}
	if n := len(top.bytes); n > maxCounted {
		t.Errorf("%d repositories are counted", n)
	}
	if got := top.most()[0]; got != ref(1) {
		t.Errorf("the top is forgotten: %v", got)
	}
	none := newTraffic(0)
	none.add(ref(1), 1)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(none)
	if n, err := testutil.GatherAndCount(registry); n != 0 || err != nil || len(none.bytes) > 0 {
		t.Errorf("without a top: %d, %v", n, err)
	}
}
