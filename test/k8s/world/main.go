// Command world is what a Tendril on a cluster meets, in one pod: foreign relays on a port each, a
// foreign git server, and users with their clients. `make k8s-test` tells it what to do by HTTP and
// asks it how that went; it measures nothing by other means than those that outsiders have.
//
//	GET  /healthz              answers once everything listens
//	POST /tasks/<name>?...     does a task (see tasks.go) and answers with what it says
//	POST /end                  asks the load to end
//	GET  /status               numbers, the tallies of the load, and who is connected to the relays
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"tendril.dev/test/outside"
)

func main() {
	log.SetFlags(0)
	host := flag.String("host", "127.0.0.1", "name under which the Tendril reaches this pod")
	gateway := flag.String("gateway", "http://127.0.0.1:7334", "the Tendril's front door")
	domain := flag.String("domain", "127.0.0.1:7334", "what the Tendril calls itself (NGIT_DOMAIN)")
	relays := flag.Int("relays", 41, "number of foreign relays")
	control := flag.String("control", ":8080", "where to listen for commands")
	gitPort := flag.Int("git-port", 8090, "port of the git server")
	firstPort := flag.Int("first-port", 9001, "port of the first relay")
	flag.Parse()
	w, err := newWorld(*host, *gateway, *domain)
	if err != nil {
		log.Fatalf("world: %v", err)
	}
	failed := make(chan error)
	if err := w.serve(*relays, *firstPort, *gitPort, failed); err != nil {
		log.Fatalf("world: %v", err)
	}
	server := &http.Server{Addr: *control, Handler: w.control(), ReadHeaderTimeout: 10 * time.Second}
	go func() { failed <- server.ListenAndServe() }()
	log.Fatalf("world: %v", <-failed)
}

// World is everything in this pod.
type World struct {
	host, gateway, domain string
	dir                   string // for work trees and bare repositories

	relays []*outside.Relay
	urls   []string // of the relays
	ledger outside.Ledger
	git    *outside.GitServer
	gitURL string

	owner, stranger, guest *outside.Person

	flow  flow
	users users
}

func newWorld(host, gateway, domain string) (*World, error) {
	w := &World{host: host, gateway: gateway, domain: domain}
	var err error
	if w.dir, err = os.MkdirTemp("", "world-"); err != nil {
		return nil, err
	}
	for _, p := range []**outside.Person{&w.owner, &w.stranger, &w.guest} {
		if *p, err = outside.NewPerson(); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// serve starts relays and git server; what ends later is sent to failed. Port 0 is any.
func (w *World) serve(relays, firstPort, gitPort int, failed chan<- error) error {
	for i := range relays {
		relay, err := outside.NewRelay()
		if err != nil {
			return err
		}
		port := firstPort
		if port != 0 {
			port += i
		}
		listener, at, err := w.listen(port)
		if err != nil {
			return fmt.Errorf("relay %d: %w", i, err)
		}
		w.relays, w.urls = append(w.relays, relay), append(w.urls, "ws://"+at)
		go func() { failed <- w.ledger.Serve(listener, "ws://"+at, relay) }()
	}
	bare, err := os.MkdirTemp(w.dir, "git-")
	if err != nil {
		return err
	}
	if w.git, err = outside.NewGitServer(bare); err != nil {
		return err
	}
	listener, at, err := w.listen(gitPort)
	if err != nil {
		return fmt.Errorf("git server: %w", err)
	}
	w.gitURL = "http://" + at
	server := &http.Server{Handler: w.git, ReadHeaderTimeout: 10 * time.Second}
	go func() { failed <- server.Serve(listener) }()
	return nil
}

// listen listens on a port and returns the address under which the Tendril reaches it.
func (w *World) listen(port int) (net.Listener, string, error) {
	listener, err := net.Listen("tcp", ":"+strconv.Itoa(port))
	if err != nil {
		return nil, "", err
	}
	_, taken, err := net.SplitHostPort(listener.Addr().String())
	return listener, net.JoinHostPort(w.host, taken), err
}

// control is the handler of commands.
func (w *World) control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintln(rw, "ok") })
	mux.HandleFunc("POST /tasks/{name}", w.run)
	mux.HandleFunc("POST /end", func(http.ResponseWriter, *http.Request) { w.users.end() })
	mux.HandleFunc("GET /status", w.status)
	return mux
}

func answer(rw http.ResponseWriter, value any) {
	rw.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(rw).Encode(value); err != nil {
		log.Printf("answer a command: %v", err)
	}
}
