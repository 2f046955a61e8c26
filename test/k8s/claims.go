package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/logins"
	"tendril.dev/proto"
)

// operator is a way to NATS for the operator: `kubectl port-forward`, begun again whenever its pod
// ends.
type operator struct{ conn *nats.Conn }

// openBus connects with the login that the folder has for the operator, whenever it connects. It
// ends with ctx.
func openBus(ctx context.Context, namespace, folder string) (*operator, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	forward(ctx, namespace, "service/nats", port)
	user := func() (name, password string) {
		login, _ := operatorLogin(folder) // without it NATS refuses, and the next attempt reads again
		return login.User, login.Password
	}
	conn, err := nats.Connect("nats://127.0.0.1:"+port, nats.UserInfoHandler(user),
		nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(time.Second), nats.IgnoreAuthErrorAbort())
	if err != nil {
		return nil, fmt.Errorf("connect to NATS as the operator: %w", err)
	}
	return &operator{conn}, nil
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
func (b *operator) leader(ctx context.Context) (string, error) {
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

// freePort is a port of this machine that is not in use.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}

// claims is who claims what of a group: name of the key → worker.
func (b *operator) claims(ctx context.Context, group string) (map[string]string, error) {
	js, err := jetstream.New(b.conn)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	claims := map[string]string{}
	err = bus.Read(ctx, js, bus.Reading{Stream: proto.KVStream(proto.BucketClaims)}, func(m bus.Message) {
		key := strings.TrimPrefix(m.Subject, proto.KVSubject(proto.BucketClaims, ""))
		of, name, wrong := proto.ParseClaimKey(key)
		var c proto.Claim
		switch {
		case wrong != nil || of != group:
		case m.Deletes() || json.Unmarshal(m.Data, &c) != nil:
			delete(claims, name)
		default:
			claims[name] = c.Worker
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read the claims: %w", err)
	}
	return claims, nil
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
