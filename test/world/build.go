package world

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"sync"
	"testing"
)

// built is what was built for the tests of a package. Call Clean at their end.
var built struct {
	sync.Mutex
	dir      string
	programs map[string]string // folder in the repository → program
}

// program builds the program of a folder of the repository, once for all tests of a package, and gives its path.
func program(t testing.TB, folder string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if program, ok := built.programs[folder]; ok {
		return program
	}
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "tendril-test-")
		if err != nil {
			t.Fatal(err)
		}
		built.dir, built.programs = dir, map[string]string{}
	}
	program := filepath.Join(built.dir, path.Base(folder))
	cmd := exec.Command("go", "build", "-tags", "libsecp256k1", "-o", program, ".")
	cmd.Dir = filepath.Join(root(t), filepath.FromSlash(folder))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", folder, err, out)
	}
	built.programs[folder] = program
	return program
}

// root is the folder of the repository: the next one above the test that has a go.work.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir
		}
		if filepath.Dir(dir) == dir {
			t.Fatal("the test runs outside of the repository")
		}
		dir = filepath.Dir(dir)
	}
}

// Binary is the path of the built program.
func Binary(t testing.TB) string {
	t.Helper()
	return program(t, "cmd/tendril")
}

// Clean removes what was built.
func Clean() {
	built.Lock()
	defer built.Unlock()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	built.dir, built.programs = "", nil
}
