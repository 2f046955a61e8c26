// Command world is what a Tendril on a cluster meets, in one pod: foreign relays on a port each, a
// foreign git server, and users with their clients. `make k8s-test` tells it what to do by HTTP and
// asks it how that went; it measures nothing by other means than those that outsiders have.
//
//	GET /healthz              answers once everything listens
//	GET /tasks/<name>?...     does a task (see tasks.go) and answers with what it says
//	GET /end                  asks the load to end
//	GET /status               numbers, the tallies of the load, and who is connected to the relays
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"tendril.dev/test/fixture"
	"tendril.dev/test/outside"
	"tendril.dev/test/world"
)

func main() {
	log.SetFlags(0)
	host := flag.String("host", "127.0.0.1", "name under which the Tendril reaches this pod")
	gateway := flag.String("gateway", "http://127.0.0.1:7334", "the Tendril's front door")
	domain := flag.String("domain", "127.0.0.1:7334", "what the Tendril calls itself (NGIT_DOMAIN)")
	relays := flag.Int("relays", 41, "number of foreign relays")
	flag.Parse()
	failed := make(chan error)
	w := newWorld(&task{ends: func() { log.Fatal("world: failed") }}, *host, *gateway, *domain)
	w.serve(*relays, 9001, 8090, failed)
	server := &http.Server{Addr: ":8080", Handler: w.control(), ReadHeaderTimeout: 10 * time.Second}
	go func() { failed <- server.ListenAndServe() }()
	log.Fatalf("world: %v", <-failed)
}

// World is everything in this pod.
type World struct {
	t    testing.TB // of what outlives a task
	host string
	door world.Door

	relays []*world.Relay
	git    *world.GitServer
	shared *world.Repo     // the users' repository, which all relays are asked for
	owner  *fixture.Person // of it
	guest  *fixture.Person

	mu        sync.Mutex
	users     *world.Users
	published []string     // events of relays about the users' repository
	meter     *world.Meter // of the load that runs, or ran last
	stop      chan struct{}
}

func newWorld(t testing.TB, host, gateway, domain string) *World {
	door := world.At(t, gateway)
	door.Domain = domain
	return &World{t: t, host: host, door: door, owner: door.Person(), guest: door.Person(), git: world.GitServerIn(t)}
}

// serve starts relays and git server; what ends later is sent to failed. Port 0 is any.
func (w *World) serve(relays, firstPort, gitPort int, failed chan<- error) {
	for i := range relays {
		port := firstPort
		if port != 0 {
			port += i
		}
		listener, at := w.listen(port)
		relay := world.RelayOf(w.t, "ws://"+at, outside.NewRelay(outside.Behaviour{NoNegentropy: true}))
		w.relays = append(w.relays, relay)
		go func() { failed <- relay.Serve(listener) }()
	}
	listener, at := w.listen(gitPort)
	w.git.URL = "http://" + at
	server := &http.Server{Handler: w.git, ReadHeaderTimeout: 10 * time.Second}
	go func() { failed <- server.Serve(listener) }()
}

// listen listens on a port and returns the address under which the Tendril reaches it.
func (w *World) listen(port int) (net.Listener, string) {
	listener, err := net.Listen("tcp", ":"+strconv.Itoa(port))
	if err != nil {
		w.t.Fatal(err)
	}
	return listener, net.JoinHostPort(w.host, strconv.Itoa(listener.Addr().(*net.TCPAddr).Port))
}

// control is the handler of commands.
func (w *World) control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintln(rw, "ok") })
	mux.HandleFunc("GET /tasks/{name}", w.run)
	mux.HandleFunc("GET /end", func(rw http.ResponseWriter, _ *http.Request) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.stop != nil {
			close(w.stop)
			w.stop = nil
		}
		fmt.Fprintln(rw, "{}")
	})
	mux.HandleFunc("GET /status", w.status)
	return mux
}

// status tells how the world stands.
func (w *World) status(rw http.ResponseWriter, _ *http.Request) {
	w.mu.Lock()
	s := world.Status{Now: time.Now(), Published: len(w.published)}
	if w.meter != nil {
		s.Clients = w.meter.Tallies()
	}
	w.mu.Unlock()
	for _, r := range w.relays {
		s.Relays = append(s.Relays, r.URL)
		for _, span := range r.Spans() {
			span.Relay = r.URL
			s.Spans = append(s.Spans, span)
		}
	}
	if err := json.NewEncoder(rw).Encode(s); err != nil {
		log.Printf("answer a command: %v", err)
	}
}
