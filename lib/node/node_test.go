package node

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tendril.dev/lib/config"
	"tendril.dev/test/fixture"
)

var must = fixture.Must

func settings(t *testing.T, args ...string) config.Settings {
	t.Helper()
	s, err := config.Process().Parse(append([]string{"--domain=git.example.com", "--database-backend=memory", "--nats-listen=none", "--shutdown-wait=10m"}, args...))
	must(t, err)
	return s
}

func open(t *testing.T, s config.Settings) *Node {
	t.Helper()
	n, err := Open(t.Context(), "test", s, slog.New(slog.DiscardHandler), false)
	must(t, err)
	return n
}

// untilStopped is a service that notes its start and its end.
func untilStopped(name string, seen chan<- string) Service {
	return Service{Name: name, Run: func(ctx context.Context, _ *Node) error {
		seen <- name + " starts"
		<-ctx.Done()
		seen <- name + " stops"
		return ctx.Err()
	}}
}

func TestServicesStopOneAfterTheOtherInReverse(t *testing.T) {
	t.Parallel()
	n := open(t, settings(t))
	seen, done := make(chan string, 10), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		done <- n.Run(ctx, untilStopped("a", seen), untilStopped("b", seen), untilStopped("c", seen))
	}()
	for range 3 {
		<-seen
	}
	cancel()
	if err := errors.Join(<-done, n.Close()); err != nil {
		t.Error(err)
	}
	if got := []string{<-seen, <-seen, <-seen}; !slices.Equal(got, []string{"c stops", "b stops", "a stops"}) {
		t.Errorf("%q", got)
	}
}

// TestFailingServiceStopsTheOthers, and the error is the first: what follows from it is not told.
func TestFailingServiceStopsTheOthers(t *testing.T) {
	t.Parallel()
	broken := errors.New("the disk is on fire")
	for name, c := range map[string]struct {
		run  func(context.Context, *Node) error
		want string
	}{
		"an error":    {func(context.Context, *Node) error { return broken }, "bad: the disk is on fire"},
		"no error":    {func(context.Context, *Node) error { return nil }, "bad: ended by itself"},
		"a cancelled": {func(context.Context, *Node) error { return context.Canceled }, "bad: context canceled"},
		"afterwards":  {func(ctx context.Context, _ *Node) error { <-ctx.Done(); return broken }, "broke"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, seen := open(t, settings(t)), make(chan string, 10)
			services := []Service{untilStopped("good", seen), {Name: "bad", Run: c.run}}
			if c.want == "broke" { // of the service that the process is named for no name is said
				services = append(services, Service{Name: "test", Run: func(context.Context, *Node) error { return errors.New("broke") }})
			}
			if err := n.Run(t.Context(), services...); err == nil || err.Error() != c.want {
				t.Errorf("%v, want %s", err, c.want)
			}
			if got := []string{<-seen, <-seen}; got[1] != "good stops" {
				t.Errorf("the other service: %q", got)
			}
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestServiceThatDoesNotStopIsLeftBehind, and the index stays open for it.
func TestServiceThatDoesNotStopIsLeftBehind(t *testing.T) {
	t.Parallel()
	n := open(t, settings(t, "--shutdown-wait=50ms"))
	ctx, cancel := context.WithCancel(t.Context())
	release, ended := make(chan struct{}), make(chan error, 1)
	err := n.Run(ctx, Service{Name: "stubborn", Run: func(_ context.Context, n *Node) error {
		cancel()
		<-release
		view := n.Index.View()
		_, _, err := view.Holder(0, strings.Repeat("0", 64), "")
		ended <- errors.Join(err, view.Close())
		return nil
	}})
	if err == nil || err.Error() != "stubborn: still running at the end of the graceful stop" {
		t.Errorf("%v", err)
	}
	err = n.Close()
	close(release)
	if err := errors.Join(err, <-ended, n.Index.Close()); err != nil { // the end of the process in real life
		t.Error(err)
	}
}

func TestFolderThatIsNotToBeHad(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	_, err := Open(t.Context(), "test", settings(t, "--database-backend=file", "--relay-data-path="+file), slog.New(slog.DiscardHandler), false)
	if want := `NGIT_RELAY_DATA_PATH is "` + file + `": not a directory; want a folder that this user may write to`; err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

// TestMemoryLeavesNoGitFolder: with NGIT_DATABASE_BACKEND=memory git data ends with the process,
// except in a folder that the operator names, or that other processes share.
func TestMemoryLeavesNoGitFolder(t *testing.T) {
	t.Parallel()
	n := open(t, settings(t, "--database-backend=memory"))
	scratch := n.Settings.GitDataPath
	if stat, err := os.Stat(scratch); err != nil || scratch == config.DefaultGitDataPath || stat.Mode().Perm() != 0o700 {
		t.Fatalf("the folder %s: %v, %v", scratch, stat, err)
	}
	must(t, os.WriteFile(filepath.Join(scratch, "x"), nil, 0o600))
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(scratch); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("afterwards: %v", err)
	}
	named := t.TempDir()
	n = open(t, settings(t, "--database-backend=memory", "--git-data-path="+named))
	err := n.Close()
	if _, missing := os.Stat(named); n.Settings.GitDataPath != named || errors.Join(err, missing) != nil {
		t.Errorf("a folder that was named: %s, %v, %v", n.Settings.GitDataPath, err, missing)
	}
}
