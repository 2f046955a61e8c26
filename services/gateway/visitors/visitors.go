// Package visitors knows how many connections there are, in all and from each address, and turns away what is too many (spec/grasp.md,
// Limits).
package visitors

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
)

// The reasons for turning a connection away.
var (
	ErrFull    = errors.New("this relay has as many connections as it can serve; try again later")
	ErrTooMany = errors.New("too many connections from your address; close some first")
)

// Register counts connections. It is safe for concurrent use.
type Register struct {
	most, mostEach int

	mu    sync.Mutex
	total int
	from  map[netip.Prefix]int
}

// NewRegister makes a register that lets most connections in at once, and mostEach from one address.
func NewRegister(most, mostEach int) *Register {
	return &Register{most: most, mostEach: mostEach, from: map[netip.Prefix]int{}}
}

// Enter lets a connection in, until leave is called, which may happen several times. The error is [ErrFull] or [ErrTooMany].
func (r *Register) Enter(addr netip.Addr) (leave func(), err error) {
	who := visitor(addr)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.total >= r.most:
		return nil, ErrFull
	case r.from[who] >= r.mostEach:
		return nil, ErrTooMany
	}
	r.total++
	r.from[who]++
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.total--
		if r.from[who]--; r.from[who] == 0 {
			delete(r.from, who)
		}
	}), nil
}

// Counts gives how many connections there are, from how many addresses, and how many of these have more than threshold.
func (r *Register) Counts(threshold int) (total, addresses, over int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.from {
		if n > threshold {
			over++
		}
	}
	return r.total, len(r.from), over
}

// visitor is what counts as one address: in IPv6 the /64 that one customer has for himself.
func visitor(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	p, err := addr.Prefix(bits)
	if err != nil {
		return netip.Prefix{} // the zero address: all that have none are one
	}
	return p
}

// Addr is the address that a request came from. If forwarded is trusted, it is the last one in X-Forwarded-For: the one that our own
// proxy has seen; those before it are the client's words.
func Addr(r *http.Request, trustForwarded bool) netip.Addr {
	if trustForwarded {
		if all := r.Header.Values("X-Forwarded-For"); len(all) > 0 {
			list := all[len(all)-1]
			last := strings.TrimSpace(list[strings.LastIndexByte(list, ',')+1:])
			if addr, ok := parse(last); ok {
				return addr
			}
		}
	}
	addr, _ := parse(r.RemoteAddr)
	return addr
}

// parse reads an address with or without a port.
func parse(s string) (netip.Addr, bool) {
	if host, _, err := net.SplitHostPort(s); err == nil {
		s = host
	}
	addr, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return addr.Unmap(), err == nil
}
