package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/logins"
	"tendril.dev/proto"
)

// bus is an operator's way to NATS: `kubectl port-forward`, begun again whenever its pod ends, and
// a watch of the claims, begun again with each connection.
type bus struct {
	conn      *nats.Conn
	connected chan struct{} // has one when a connection was made

	mu     sync.Mutex
	held   map[string]string // key of a claim → worker
	isHeld bool              // held is what the bucket has
}

// openBus connects with the login that the folder has for the operator, whenever it connects. It
// ends with ctx.
func openBus(ctx context.Context, namespace, folder string) (*bus, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	forward(ctx, namespace, "service/nats", port)
	b := &bus{connected: make(chan struct{}, 1)}
	again := func(*nats.Conn) {
		select {
		case b.connected <- struct{}{}:
		default:
		}
	}
	user := func() (name, password string) {
		login, _ := operatorLogin(folder) // without it NATS refuses, and the next attempt reads again
		return login.User, login.Password
	}
	b.conn, err = nats.Connect("nats://127.0.0.1:"+port, nats.UserInfoHandler(user),
		nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(time.Second), nats.IgnoreAuthErrorAbort(),
		nats.ConnectHandler(again), nats.ReconnectHandler(again),
		// An operator may not end a watch, which then ends by itself; all else shows in what
		// follows.
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		return nil, fmt.Errorf("connect to NATS as the operator: %w", err)
	}
	go b.follow(ctx)
	return b, nil
}

// follow keeps held up to date, until ctx ends.
func (b *bus) follow(ctx context.Context) {
	for ctx.Err() == nil {
		b.watch(ctx)
		b.mu.Lock()
		b.isHeld = false
		b.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// watch watches the claims until the connection is made anew, or the watch ends.
func (b *bus) watch(ctx context.Context) {
	js, err := jetstream.New(b.conn)
	if err != nil {
		return
	}
	opening, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	bucket, err := js.KeyValue(opening, proto.BucketClaims)
	if err != nil {
		return
	}
	watch, err := bucket.WatchAll(ctx)
	if err != nil {
		return
	}
	defer watch.Stop()
	held := map[string]string{}
	for {
		select {
		case entry, more := <-watch.Updates():
			if !more {
				return
			}
			b.mu.Lock()
			if entry == nil {
				b.held, b.isHeld = held, true
			} else {
				note(held, entry)
			}
			b.mu.Unlock()
		case <-b.connected:
			return
		case <-ctx.Done():
			return
		}
	}
}

// note changes held as an entry of the bucket says.
func note(held map[string]string, entry jetstream.KeyValueEntry) {
	var c proto.Claim
	if entry.Operation() != jetstream.KeyValuePut || json.Unmarshal(entry.Value(), &c) != nil {
		delete(held, entry.Key())
		return
	}
	held[entry.Key()] = c.Worker
}

// forward forwards a port of this machine to a NATS server until ctx ends, and begins again
// whenever kubectl gives up.
func forward(ctx context.Context, namespace, to, port string) {
	go func() {
		for ctx.Err() == nil {
			exec.CommandContext(ctx, "kubectl", "-n", namespace, "port-forward", to, port+":4222").Run()
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}()
}

// operatorLogin reads the operator's login in a folder of logins.
func operatorLogin(folder string) (logins.Login, error) {
	return logins.Read(logins.LoginFile(folder, proto.UserOperator))
}

// leader is the NATS server that leads the log; server 0 where one is alone.
func (b *bus) leader(ctx context.Context) (string, error) {
	js, err := jetstream.New(b.conn)
	if err != nil {
		return "", err
	}
	log, err := js.Stream(ctx, proto.StreamEvents)
	if err != nil {
		return "", fmt.Errorf("look at the log: %w", err)
	}
	if cluster := log.CachedInfo().Cluster; cluster != nil && cluster.Leader != "" && cluster.Name != "" {
		return cluster.Leader, nil
	}
	return "nats-0", nil
}

// freePort is a port of this machine that nobody listens on.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}

// claims is who claims what of a group: name of the key → worker.
func (b *bus) claims(ctx context.Context, group string) (map[string]string, error) {
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		b.mu.Lock()
		if b.isHeld {
			claims := map[string]string{}
			for key, worker := range b.held {
				if of, name, err := proto.ParseClaimKey(key); err == nil && of == group {
					claims[name] = worker
				}
			}
			b.mu.Unlock()
			return claims, nil
		}
		b.mu.Unlock()
		if ctx.Err() != nil || time.Now().After(deadline) {
			return nil, errors.New("the claims cannot be read: NATS does not answer the operator")
		}
	}
}

// byWorker counts claims by worker.
func byWorker(claims map[string]string) map[string]int {
	counts := map[string]int{}
	for _, worker := range claims {
		counts[worker]++
	}
	return counts
}

// sharesLine describes claims by worker.
func sharesLine(claims map[string]string) string {
	counts := byWorker(claims)
	parts := make([]string, 0, len(counts))
	for _, worker := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", worker, counts[worker]))
	}
	return strings.Join(parts, ", ")
}

// unshared says what keeps relays from being shared out: every relay must be claimed by one of the
// workers, and these alone must be connected to it, each from its own address. Workers are name →
// address, holders relay URL → addresses that are connected. It is empty if nothing does.
func unshared(relays []string, workers map[string]string, claims map[string]string, holders map[string][]string) string {
	for _, url := range relays {
		name, err := proto.EncodeRelay(strings.TrimPrefix(url, "ws://"))
		if err != nil {
			return err.Error()
		}
		worker, claimed := claims[name]
		address, lives := workers[worker]
		switch {
		case !claimed:
			return url + " is not claimed"
		case !lives:
			return fmt.Sprintf("%s is claimed by %s, which is not there any more", url, worker)
		case len(holders[url]) == 0:
			return fmt.Sprintf("%s is not connected (claimed by %s)", url, worker)
		}
		for _, from := range holders[url] {
			if from != address {
				return fmt.Sprintf("%s is claimed by %s (%s), and %s is connected", url, worker, address, from)
			}
		}
	}
	return ""
}
