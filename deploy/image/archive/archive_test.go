package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const (
	program = "/usr/bin/tendril"
	named   = "docker.io/local/tendril:dev"
)

// rootAt makes a small root file system whose files were made at this time, in another order for
// another time.
func rootAt(t *testing.T, at time.Time) string {
	t.Helper()
	root := t.TempDir()
	steps := []func() error{
		func() error { return os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755) },
		func() error { return os.MkdirAll(filepath.Join(root, "etc"), 0o755) },
		func() error { return os.Mkdir(filepath.Join(root, "tmp"), 0o755) },
	}
	if at.Unix()%2 == 1 {
		slices.Reverse(steps)
	}
	steps = append(steps,
		func() error { return os.Chmod(filepath.Join(root, "tmp"), 0o777|fs.ModeSticky) },
		func() error { return os.WriteFile(filepath.Join(root, program), []byte("a program"), 0o755) },
		func() error { return os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("tendril"), 0o644) },
		func() error { return os.Symlink("tendril", filepath.Join(root, "usr/bin/other")) },
	)
	for _, step := range steps {
		must(t, step())
	}
	for _, path := range []string{program, "etc/passwd", "usr/bin", "etc", "tmp"} {
		must(t, os.Chtimes(filepath.Join(root, path), at, at))
	}
	return root
}

func TestSameFilesGiveTheSameArchive(t *testing.T) {
	t.Parallel()
	var archive []byte
	for i := range 3 {
		out := filepath.Join(t.TempDir(), "out.tar")
		if _, err := write(rootAt(t, time.Unix(int64(1e9+i), 0)), program, named, out); err != nil {
			t.Fatal(err)
		}
		now, err := os.ReadFile(out)
		must(t, err)
		if i > 0 && !bytes.Equal(now, archive) {
			t.Error("another archive")
		}
		archive = now
	}
}

func TestArchiveIsAnImage(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out.tar")
	digest, err := write(rootAt(t, time.Now()), program, named, out)
	must(t, err)
	tag, err := name.NewTag(named)
	must(t, err)
	image, err := tarball.ImageFromPath(out, &tag)
	must(t, err)
	if err := validate.Image(image); err != nil {
		t.Error(err)
	}
	if digest.Hex == "" {
		t.Error("no digest")
	}
	config, err := image.ConfigFile()
	if err != nil || config.OS != "linux" || config.Architecture == "" || !reflect.DeepEqual(config.Config, configuration(program)) {
		t.Errorf("%+v, %v", config, err)
	}

	// The layer.
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatal(layers, err)
	}
	files, err := layers[0].Uncompressed()
	must(t, err)
	defer files.Close()
	got := map[string]int64{}
	for r := tar.NewReader(files); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		got[h.Name] = h.Mode
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || !h.ModTime.Equal(time.Unix(0, 0)) {
			t.Errorf("%+v", h)
		}
	}
	want := map[string]int64{"etc/": 0o755, "etc/passwd": 0o644, "tmp/": 0o1777, "usr/": 0o755, "usr/bin/": 0o755, "usr/bin/tendril": 0o755, "usr/bin/other": 0o777}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

var finalStage = regexp.MustCompile(`(?s)\nFROM scratch\n(.*)$`)

// TestDockerfileSaysTheSame compares the last stage of the Dockerfile with what an image has that
// was made without Docker.
func TestDockerfileSaysTheSame(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../Dockerfile")
	must(t, err)
	stage := finalStage.FindSubmatch(raw)
	if stage == nil {
		t.Fatal("no last stage FROM scratch")
	}
	want := configuration(program)
	entrypoint, err := json.Marshal(want.Entrypoint)
	must(t, err)
	lines := []string{"COPY --from=build /rootfs /"}
	for _, env := range want.Env {
		lines = append(lines, "ENV "+env)
	}
	lines = append(lines, "USER "+want.User, "WORKDIR "+want.WorkingDir, "ENTRYPOINT "+string(entrypoint))
	if got := strings.Split(strings.TrimSpace(string(stage[1])), "\n"); !slices.Equal(got, lines) {
		t.Errorf("%q, want %q", got, lines)
	}
}

// must ends the test at an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
