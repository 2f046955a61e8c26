package world

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"sync"
	"testing"
)

// built is what was built for the tests of a package. [Main] removes it.
var built struct {
	sync.Mutex
	dir      string
	programs map[string]string // by name
}

// Program builds the program of a folder of the repository, once for all tests of a package, and
// gives its path.
func Program(t testing.TB, folder string) string {
	t.Helper()
	return build(t, filepath.Join(root(t), filepath.FromSlash(folder)), ".", path.Base(folder))
}

// build builds a package, as it is named in dir, to a program of that name.
func build(t testing.TB, dir, pkg, name string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if program, ok := built.programs[name]; ok {
		return program
	}
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "tendril-test-")
		must(t, err)
		built.dir, built.programs = dir, map[string]string{}
	}
	program := filepath.Join(built.dir, name)
	// In these programs tests change constants (lib/testonly). Without tables for a debugger, linking
	// takes half the time.
	cmd := exec.Command("go", "build", "-tags", "libsecp256k1", "-ldflags", "-s -w -X tendril.dev/lib/testonly.program=yes", "-o", program, pkg)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	built.programs[name] = program
	return program
}

// root is the folder of the repository: the next one above the test that has a go.work.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	must(t, err)
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
	return Program(t, "cmd/tendril")
}

// Main is TestMain of a package whose tests build programs: it removes them at the end.
func Main(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// natsServer is the NATS server's own program, in the version that is built into Tendril.
func natsServer(t testing.TB) string {
	t.Helper()
	return build(t, ".", "github.com/nats-io/nats-server/v2", "nats-server")
}
