package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
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

// someRoot makes a small root file system.
func someRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755))
	must(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
	must(t, os.Mkdir(filepath.Join(root, "tmp"), 0o755))
	must(t, os.Chmod(filepath.Join(root, "tmp"), 0o777|fs.ModeSticky))
	must(t, os.WriteFile(filepath.Join(root, program), []byte("a program"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("tendril"), 0o644))
	must(t, os.Symlink("tendril", filepath.Join(root, "usr/bin/other")))
	return root
}

func TestArchiveIsAnImage(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out.tar")
	digest, err := write(someRoot(t), program, named, out)
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
	for port := range want.ExposedPorts {
		lines = append(lines, "EXPOSE "+port)
	}
	for folder := range want.Volumes {
		lines = append(lines, "VOLUME "+folder)
	}
	if h := want.Healthcheck; h != nil {
		command, err := json.Marshal(h.Test[1:])
		must(t, err)
		lines = append(lines, fmt.Sprintf("HEALTHCHECK --interval=%.0fs --timeout=%.0fs --start-period=%.0fm --retries=%d %s %s",
			h.Interval.Seconds(), h.Timeout.Seconds(), h.StartPeriod.Minutes(), h.Retries, h.Test[0], command))
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
