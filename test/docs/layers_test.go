package docs

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"tendril.dev/test/fixture"
)

// layer returns which folders of the product a package in that folder may import: arrows point one
// way, cmd -> services -> lib -> proto, and a service does not know another one.
func layer(folder string) (mayImport []string, isProduct bool) {
	parts := strings.Split(folder, "/")
	switch parts[0] {
	case "proto":
		return []string{"proto"}, true
	case "lib":
		return []string{"proto", "lib"}, true
	case "services":
		return []string{"proto", "lib", "services/" + parts[1]}, true
	case "cmd":
		return []string{"proto", "lib", "services", "cmd"}, true
	}
	return nil, false
}

// One module holds all services, so the compiler does not say when one of them imports another.
func TestImportsPointOneWay(t *testing.T) {
	t.Parallel()
	files := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		mayImport, isProduct := layer(filepath.ToSlash(folder))
		if !isProduct {
			return nil
		}
		files++
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			imported, ours := strings.CutPrefix(name, "tendril.dev/")
			allowed := !ours
			for _, prefix := range mayImport {
				allowed = allowed || imported == prefix || strings.HasPrefix(imported, prefix+"/")
			}
			if !allowed {
				t.Errorf("%s imports %s", path, name)
			}
		}
		return nil
	})
	fixture.Must(t, err)
	if files < 100 {
		t.Fatalf("only %d files found", files)
	}
}

// go install refuses a module that replaces another.
func TestGoInstallTakesTheModule(t *testing.T) {
	t.Parallel()
	module, err := os.ReadFile(filepath.Join(root, "go.mod"))
	fixture.Must(t, err)
	for line := range strings.Lines(string(module)) {
		if strings.HasPrefix(line, "replace") || strings.HasPrefix(line, "exclude") {
			t.Errorf("go.mod has %q", strings.TrimSpace(line))
		}
	}
}
