package node

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"testing"

	"tendril.dev/lib/config"
)

func TestListenError(t *testing.T) {
	t.Parallel()
	op := func(errno syscall.Errno) error {
		return &net.OpError{Op: "listen", Net: "tcp", Err: os.NewSyscallError("bind", errno)}
	}
	for want, err := range map[string]error{
		"address already in use; stop what listens there, or choose another": op(syscall.EADDRINUSE),
		"permission denied; choose another":                                  op(syscall.EACCES),
		"lookup nowhere: no such host":                                       errors.New("lookup nowhere: no such host"),
	} {
		if got := ListenError("NGIT_X", "nowhere:80", err).Error(); got != `NGIT_X is "nowhere:80": `+want {
			t.Errorf("%v: %s", err, got)
		}
	}
}

func TestStorageError(t *testing.T) {
	t.Parallel()
	var s config.Settings
	s.RelayDataPath = "/srv/relay"
	open := func(err error) error {
		return fmt.Errorf("open index: %w", &fs.PathError{Op: "open", Path: "x", Err: err})
	}
	for want, err := range map[string]error{
		"another process works in this folder; stop it, or give each a folder of its own": fmt.Errorf("open index: %w", syscall.EAGAIN),
		"permission denied; want a folder that this user may write to":                    open(syscall.EACCES),
		"read-only file system; want a folder that this user may write to":                open(syscall.EROFS),
		"open index: corrupt": errors.New("open index: corrupt"),
	} {
		if got := storageError(s, err).Error(); got != `NGIT_RELAY_DATA_PATH is "/srv/relay": `+want {
			t.Errorf("%v: %s", err, got)
		}
	}
}

func TestWorkerName(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{"laptop": "laptop", "node-1.example.com": "node-1-example-com", "häuser*>": "h-user--"} {
		if got := workerName(host); got != want {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
}

// TestWhoHasAnIndex: a process keeps one if a service needs it, or if there is no other to ask.
func TestWhoHasAnIndex(t *testing.T) {
	t.Parallel()
	asks, needs := Service{Name: "a", Asks: true}, Service{Name: "b"}
	for name, c := range map[string]struct {
		url      string
		services []Service
		want     bool
	}{
		"asks":                        {"nats://x", []Service{asks}, false},
		"two ask":                     {"nats://x", []Service{asks, asks}, false},
		"one needs it":                {"nats://x", []Service{asks, needs}, true},
		"asks, and embeds the server": {"", []Service{asks}, true},
		"not said":                    {"nats://x", nil, true},
	} {
		if got := hasIndex(c.url, c.services); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
