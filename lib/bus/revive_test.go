//go:build unix

package bus

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/proto"
)

// fullDiskEnv makes the test run in a process of its own, because it limits the size of files
// there.
const fullDiskEnv = "TENDRIL_TEST_FULL_DISK"

// TestEmbeddedServerWritesAgainOnceThereIsRoom: a NATS server writes no more to a stream after a
// write has failed, until it is started anew. The disk is "full" while no file may grow.
func TestEmbeddedServerWritesAgainOnceThereIsRoom(t *testing.T) {
	t.Parallel()
	if os.Getenv(fullDiskEnv) == "" {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestEmbeddedServerWritesAgainOnceThereIsRoom$", "-test.timeout=3m")
		child.Env = append(os.Environ(), fullDiskEnv+"=1")
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	signal.Ignore(syscall.SIGXFSZ) // the write fails instead
	dir := t.TempDir()
	b, err := Open(t.Context(), Options{Dir: dir, Listen: "127.0.0.1:0", Sizing: proto.DefaultSizing(), reviveEvery: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	url := b.ClientURL()
	if err := put(b, "1", time.Minute); err != nil {
		t.Fatal(err)
	}
	release := limitFiles(t, 1)
	if err := put(b, "2", 100*time.Millisecond); err == nil {
		t.Fatal("a full disk took an event: the test proves nothing")
	}
	disconnected := b.Conn.StatusChanged(nats.RECONNECTING)
	release()
	select {
	case <-disconnected:
	case <-time.After(time.Minute):
		t.Fatal("the server was not started anew")
	}
	for end := time.Now().Add(time.Minute); ; {
		err := put(b, "3", time.Second)
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("there is room again, and still: %v", err)
		}
	}
	stream, err := b.JS.Stream(t.Context(), proto.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.GetLastMsgForSubject(t.Context(), subjectOf("1")); err != nil {
		t.Errorf("what was written before: %v", err)
	}
	if got := b.ClientURL(); got != url {
		t.Errorf("it listens at %s now, before at %s", got, url)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".tendril-room-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// limitFiles lets no file of this process grow beyond bytes, until the function is called that it
// returns.
func limitFiles(t *testing.T, bytes uint64) (release func()) {
	t.Helper()
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	set := func(limit syscall.Rlimit) {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			t.Fatal(err)
		}
	}
	set(syscall.Rlimit{Cur: bytes, Max: before.Max})
	return func() { set(before) }
}

func subjectOf(slot string) string {
	return "grasp.event.1." + strings.Repeat("a", 64) + "." + strings.Repeat(slot, 32)
}

// put writes a message to the log.
func put(b *Bus, slot string, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := b.JS.PublishMsg(ctx, &nats.Msg{Subject: subjectOf(slot)}, jetstream.WithRetryAttempts(0))
	return err
}
