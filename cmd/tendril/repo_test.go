package main

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"tendril.dev/lib/nostr"
)

// TestARemovalIsConfirmed: nothing but a yes is one, and an answer is not taken for the next one.
func TestARemovalIsConfirmed(t *testing.T) {
	t.Parallel()
	name := repoName{nostr.RepoRef{PubKey: strings.Repeat("a1", 32), Identifier: "tree"}}
	for input, want := range map[string]string{
		"":                                  "n",
		"\n":                                "n",
		"n\ny\n":                            "ny",
		"y\nn\nYES\r\n":                     "yny",
		" yes \n\x1b[A\ny":                  "yny",
		"yess\nye\n":                        "nn",
		"y" + strings.Repeat(" ", 1000):     "y",
		strings.Repeat("y", 1000) + "\ny\n": "n",
	} {
		in := bufio.NewScanner(strings.NewReader(input))
		got := ""
		for range want {
			var out strings.Builder
			err := confirmed(in, &out, name)
			switch {
			case err == nil:
				got += "y"
			case strings.Contains(err.Error(), "npub1") && strings.HasSuffix(err.Error(), "/tree is not removed"):
				got += "n"
			default:
				t.Errorf("%q: %v", input, err)
			}
			if !strings.Contains(out.String(), "cannot be undone. [y/N]") {
				t.Errorf("asked %q", out.String())
			}
		}
		if got != want {
			t.Errorf("%q: %s, want %s", input, got, want)
		}
	}
	broken := errors.New("broken")
	if err := confirmed(bufio.NewScanner(iotest.ErrReader(broken)), io.Discard, name); !errors.Is(err, broken) {
		t.Errorf("an answer that cannot be read: %v", err)
	}
}
