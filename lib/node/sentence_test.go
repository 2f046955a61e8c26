package node

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
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
	for name, got := range map[string]bool{
		"one needs it":                hasIndex("nats://x", []Service{asks, needs}),
		"asks, and embeds the server": hasIndex("", []Service{asks}),
		"not said":                    hasIndex("nats://x", nil),
		"all ask":                     !hasIndex("nats://x", []Service{asks, asks}),
	} {
		if !got {
			t.Error(name)
		}
	}
}
