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
	cmd.Dir = filepath.Join("..", "..", filepath.FromSlash(folder))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", folder, err, out)
	}
	built.programs[folder] = program
	return program
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
