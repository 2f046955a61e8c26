package node

import (
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"time"
)

// longestProfile is how long a request for a profile may take, in all.
const longestProfile = 10 * time.Minute

// serveProfiles serves profiles of this process on NGIT_PROFILE_ADDRESS until end is called.
// Without that setting it does nothing.
func (n *Node) serveProfiles() (end func(), err error) {
	address := n.Settings.ProfileAddress
	if address == "" {
		return func() {}, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, ListenError("NGIT_PROFILE_ADDRESS", address, err)
	}
	n.Log.Info("listening", "service", "profiles", "address", listener.Addr().String())
	server := &http.Server{Handler: profiles(), ReadHeaderTimeout: 10 * time.Second, WriteTimeout: longestProfile}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			n.Log.Warn("profiles are not served any more", "error", err)
		}
	}()
	return func() { server.Close() }, nil
}

// profiles answers /debug/pprof/ as net/http/pprof does, but only requests that name this machine
// by a loopback address: a web page whose name somebody made point here is told nothing.
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !namesLoopback(r.Host) {
			http.Error(w, "profiles are for this machine", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// namesLoopback reports whether a Host header is localhost or a loopback address.
func namesLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}
