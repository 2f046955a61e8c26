package githttp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"tendril.dev/lib/netguard"
	"tendril.dev/test/fixture/gittest"
)

func isMalformed(err error) bool {
	f, is := errors.AsType[*failure](err)
	return is && f.status == http.StatusBadRequest
}

func TestReadPush(t *testing.T) {
	t.Parallel()
	a, b := strings.Repeat("a", 40), strings.Repeat("b", 40)
	for name, tc := range map[string]struct {
		in       string
		commands int
		want     string // the error, or ""
		report   bool
		sideband bool
		rest     string
	}{
		"probe":             {in: "0000"},
		"one":               {in: gittest.Pkt(ZeroID+" "+a+" refs/heads/x\x00 report-status side-band-64k\n") + "PACK", commands: 1, report: true, sideband: true, rest: "PACK"},
		"version 2 report":  {in: gittest.Pkt(a + " " + b + " refs/heads/x\x00report-status-v2 object-format=sha1 quiet agent=git/2"), commands: 1, report: true},
		"two":               {in: gittest.Pkt(a+" "+b+" refs/heads/x\x00", a+" "+ZeroID+" refs/tags/y\n"), commands: 2},
		"shallow":           {in: gittest.Pkt("shallow "+a, "shallow "+b, a+" "+b+" refs/heads/x\x00"), commands: 1},
		"nothing":           {in: "", want: "end too soon"},
		"no flush":          {in: strings.TrimSuffix(gittest.Pkt(a+" "+b+" refs/heads/x\x00"), "0000"), want: "end too soon"},
		"no length":         {in: "wxyz", want: "not pkt-lines"},
		"an error":          {in: gittest.Pkt("ERR no"), want: "not pkt-lines"},
		"unseen and gone":   {in: gittest.Pkt(ZeroID + " " + ZeroID + " refs/heads/x\x00"), commands: 1},
		"HEAD":              {in: gittest.Pkt(a + " " + b + " HEAD\x00"), want: "not below refs/"},
		"later NUL":         {in: gittest.Pkt(a+" "+b+" refs/heads/x\x00", a+" "+b+" refs/heads/y\x00atomic"), want: "control character"},
		"twice":             {in: gittest.Pkt(a+" "+b+" refs/heads/x\x00", b+" "+a+" refs/heads/x"), want: "named twice"},
		"too many commands": {in: manyCommands(maxCommands + 1), want: "more than 10000"},
	} {
		r := strings.NewReader(tc.in)
		p, err := readPush(r)
		if tc.want != "" {
			if !isMalformed(err) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: error %v, want %q", name, err, tc.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		rest, _ := io.ReadAll(r)
		if len(p.commands) != tc.commands || p.report != tc.report || p.sideband != tc.sideband || string(rest) != tc.rest {
			t.Errorf("%s: %d commands, report %v, side-band %v, rest %q", name, len(p.commands), p.report, p.sideband, rest)
		}
	}
}

func TestCommandsAreBounded(t *testing.T) {
	if _, err := readPush(strings.NewReader(strings.Repeat(gittest.Pkt("shallow " + strings.Repeat("a", 40))[:52], maxCommandBytes/52+1))); !errors.Is(err, netguard.ErrTooLarge) {
		t.Errorf("error %v", err)
	}
}

func manyCommands(n int) string {
	lines := make([]string, n)
	for i := range lines {
		lines[i] = fmt.Sprintf("%s %s refs/heads/%d", ZeroID, strings.Repeat("a", 40), i)
	}
	lines[0] += "\x00"
	return gittest.Pkt(lines...)
}

func FuzzReadPush(f *testing.F) {
	a, b := strings.Repeat("a", 40), strings.Repeat("b", 40)
	for _, seed := range []string{
		"0000", "", gittest.Pkt(ZeroID + " " + a + " refs/heads/x\x00 report-status side-band-64k\n"),
		gittest.Pkt("shallow "+a, a+" "+b+" refs/heads/x\x00report-status", b+" "+ZeroID+" refs/tags/y") + "PACK",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		p, err := readPush(bytes.NewReader(in))
		if err != nil {
			if !isMalformed(err) && !errors.Is(err, netguard.ErrTooLarge) {
				t.Fatalf("an error of another kind: %v", err)
			}
			return
		}
		for _, c := range p.commands {
			if !strings.HasPrefix(c.Name, "refs/") || strings.ContainsAny(c.Name, "\x00\n ") {
				t.Fatalf("command %+v", c)
			}
		}
		if len(p.commands) == 0 {
			return
		}
		// What git is given says the same again.
		again, err := readPush(strings.NewReader(encodeCommands(p.commands, p.atomic)))
		if err != nil || fmt.Sprint(again.commands) != fmt.Sprint(p.commands) || again.atomic != p.atomic {
			t.Fatalf("%+v became %+v, %v", p.commands, again, err)
		}
	})
}
