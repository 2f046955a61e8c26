package nostr_test

import (
	"os/exec"
	"strings"
	"testing"

	. "tendril.dev/lib/nostr"
)

// TestCheckRefNameAgreesWithGit asks the real git about every name.
func TestCheckRefNameAgreesWithGit(t *testing.T) {
	t.Parallel()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("no git to compare with")
	}
	names := append(strings.Fields(`refs/heads/main refs/tags/v1.0 refs/heads/feature/a-b_c refs/heads/ä refs/heads/日本 main HEAD @ refs refs/ /refs/heads/x refs/heads/
		refs//heads/x refs/heads/x/ refs/heads//x refs/heads/.x refs/.heads/x refs/heads/x. refs/heads/x./y refs/heads/x..y refs/heads/.. refs/heads/.
		refs/heads/x.lock refs/heads/x.lock/y refs/heads/x.lockk refs/heads/.lock refs/heads/lock refs/x.lock/heads refs/heads/@ refs/heads/@{ refs/heads/x@{1}
		refs/heads/{x} refs/heads/@x refs/heads/@/x refs/heads/-x refs/heads/x~y refs/heads/x^ refs/heads/x^{} refs/heads/x:y refs/heads/x? refs/heads/x*
		refs/heads/[x refs/heads/x] refs/heads/x\y refs/heads/x;y refs/heads/x|y refs/heads/'x' refs/heads/"x" refs/heads/%2e refs/heads/HEAD refs/heads/x,y
		refs/heads/!x refs/heads/# refs/heads/x=y refs/heads/~`),
		"refs/heads/\xff", "refs/heads/x y", "refs/heads/x\ty", "refs/heads/x\x7f", "refs/heads/x\x1b[31m", "refs/heads/x\n", "refs/heads/\u0085", "refs/heads/$(rm -rf)", "refs/heads/`x`")
	for _, name := range names {
		legal := exec.Command(git, "check-ref-format", name).Run() == nil
		if err := CheckRefName(name); (err == nil) != legal {
			t.Errorf("CheckRefName(%q) = %v, and git says legal = %v", name, err, legal)
		}
	}
}

func TestCheckRefNameBounds(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]string{
		"refs/heads/" + strings.Repeat("x", 240):        "",
		"refs/heads/" + strings.Repeat("x", 241):        "longer than 240",
		"refs/heads/" + strings.Repeat("x/", 506) + "x": "",
		"refs/heads/" + strings.Repeat("x/", 507) + "x": "longer than 1024",
		"refs/heads/x\x00y":                             "control",
	} {
		mentions(t, name, CheckRefName(name), wrong)
	}
}
