package main

import (
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"tendril.dev/lib/config"
)

// TestManPage has every command that is not hidden, every setting once, and no line that troff would
// take for a request.
func TestManPage(t *testing.T) {
	t.Parallel()
	src := config.Process()
	parser, err := config.NewParser(&grammar{}, src, kong.Name("tendril"), kong.Bind(src), kong.Description("A GRASP server."))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := writeMan(&out, parser.Model); err != nil {
		t.Fatal(err)
	}
	page := out.String()
	for _, want := range []string{".TH TENDRIL 1", ".SS \"up ", ".SS \"config check", ".SS \"repo remove", "\n.B NGIT_DOMAIN\n(\\-\\-domain) "} {
		if strings.Count(page, want) != 1 {
			t.Errorf("%d times %q", strings.Count(page, want), want)
		}
	}
	if strings.Contains(page, "tendril man") || strings.Contains(page, ".SS \"man") {
		t.Error("a hidden command is there")
	}
	for line := range strings.Lines(page) {
		if request, _, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(request, ".") &&
			!strings.Contains(" .TH .SH .SS .TP .B .I ", " "+request+" ") {
			t.Errorf("a line of text is a request: %s", line)
		}
	}
}
