package importer

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tendril.dev/cmd/tendril/gittree"
	"tendril.dev/lib/nostr"
)

// TestADamagedRepositoryKeepsNoneOfTheOthers: it is told of in the end. A git that cannot be run is
// told of at once.
func TestADamagedRepositoryKeepsNoneOfTheOthers(t *testing.T) {
	t.Parallel()
	const npub = "npub1sg6plzptd64u62a878hep2kev88swjh3tw00gjsfl8f237lmu63q0uf63m"
	dir := t.TempDir()
	for _, name := range []string{"damaged", "empty"} {
		if out, err := exec.Command("git", "init", "-q", "--bare", filepath.Join(dir, npub, name+".git")).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, npub, "damaged.git", "HEAD"), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	trees, err := NewTrees(t.Context(), gittree.Git{}, dir, "http://127.0.0.1:1", func(int, int) {})
	if err != nil {
		t.Fatal(err)
	}
	for _, push := range []func() (int, error){
		func() (int, error) {
			return trees.PushStates(t.Context(), func(string) ([]*nostr.State, error) { return nil, nil })
		},
		func() (int, error) { return trees.PushPulls(t.Context(), func(string) bool { return true }) },
	} {
		if n, err := push(); n != 0 || err != nil {
			t.Errorf("pushed %d, %v", n, err)
		}
	}
	if p := trees.Pushed(); p.Empty != 1 || len(p.Failed) != 1 || !strings.Contains(p.Failed[0], "damaged.git: git for-each-ref") {
		t.Errorf("%+v", p)
	}
	if _, err := NewTrees(t.Context(), gittree.Git{Program: filepath.Join(dir, "git")}, dir, "http://127.0.0.1:1", func(int, int) {}); err == nil {
		t.Error("a git that is not there is no error")
	}
}
