package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/logins"
	"tendril.dev/test/k8s/cluster"
	"tendril.dev/test/outside"
)

// logins rotates all NATS logins under load: new ones beside the old ones, given to the running
// pods, then the old ones are taken away. No process restarts.
func (r *run) logins(ctx context.Context) error {
	before, err := r.cluster.Pods(ctx, r.o.namespace)
	if err != nil {
		return err
	}
	sum, err := r.underLoad(ctx, 0, func() error {
		began := time.Now()
		old, err := r.rotate(ctx)
		if err != nil {
			return err
		}
		r.say("NATS lets in old and new logins, and every service has its new one, after %v", time.Since(began).Round(time.Second))
		if err := r.retire(ctx, old); err != nil {
			return err
		}
		r.say("only new logins are let in, after %v", time.Since(began).Round(time.Second))
		return r.await(ctx, "everything is ready", 2*time.Minute, func() string { return r.unready(ctx, len(before)) })
	})
	r.summary.add(r.overlay+": logins rotated", requestsLine(sum))
	if err != nil {
		return err
	}
	after, err := r.cluster.Pods(ctx, r.o.namespace)
	if err != nil {
		return err
	}
	if restarted := append(cluster.Restarted(before, after), cluster.Gone(before, after)...); len(restarted) > 0 {
		return fmt.Errorf("these did not live through it: %s", strings.Join(restarted, ", "))
	}
	return nil
}

// rotate adds new logins beside the old ones, and waits until NATS servers and services have them.
// It returns the operator's old one.
func (r *run) rotate(ctx context.Context) (old logins.Login, err error) {
	if old, err = operatorLogin(r.loginsFolder()); err != nil {
		return old, err
	}
	if err := r.loginsCommand(ctx, "rotate"); err != nil {
		return old, err
	}
	if err := r.applyLogins(ctx); err != nil {
		return old, err
	}
	added, err := operatorLogin(r.loginsFolder())
	if err != nil {
		return old, err
	}
	if err := r.reload(ctx, added, true); err != nil {
		return old, err
	}
	return old, r.await(ctx, "every service sees its new login", 4*time.Minute, func() string { return r.oldLogins(ctx) })
}

// retire takes the old logins away; the servers close the connections that use them.
func (r *run) retire(ctx context.Context, old logins.Login) error {
	if err := r.loginsCommand(ctx, "retire"); err != nil {
		return err
	}
	if err := r.applyLogins(ctx); err != nil {
		return err
	}
	return r.reload(ctx, old, false)
}

// applyLogins applies the secrets that hold what the folder of logins has now.
func (r *run) applyLogins(ctx context.Context) error {
	_, err := cluster.Kubectl(ctx, "apply", "-k", r.overlayFolder())
	return err
}

// oldLogins says which services do not see their new login yet. The image has no shell, but it has
// git, which can tell what is in a file.
func (r *run) oldLogins(ctx context.Context) string {
	pods, err := r.cluster.Pods(ctx, r.o.namespace)
	if err != nil {
		return err.Error()
	}
	for _, p := range pods {
		if !slices.Contains(services, p.Component) {
			continue
		}
		want, err := outside.RunGit(ctx, r.dir, "hash-object", "--no-filters", logins.LoginFile(r.loginsFolder(), p.Component))
		if err != nil {
			return err.Error()
		}
		got, err := cluster.Kubectl(ctx, "-n", r.o.namespace, "exec", p.Name, "--", "git", "hash-object", "--no-filters", "/etc/tendril/nats/login")
		if err != nil {
			return err.Error()
		}
		if strings.TrimSpace(got) != want {
			return p.Name + " sees the old one"
		}
	}
	return ""
}

// reload lets the NATS servers read their users again until each lets a login in, or refuses it.
// The file that a server reads changes some time after its secret, so it is told more than once.
func (r *run) reload(ctx context.Context, login logins.Login, letIn bool) error {
	pods, err := r.cluster.Pods(ctx, r.o.namespace)
	if err != nil {
		return err
	}
	for _, p := range cluster.Of(pods, "nats") {
		if err := r.await(ctx, fmt.Sprintf("%s has read its users again", p.Name), 4*time.Minute, func() string {
			if _, err := cluster.Kubectl(ctx, "-n", r.o.namespace, "exec", p.Name, "--", "nats-server", "--signal=reload=/run/nats/nats.pid"); err != nil {
				return err.Error()
			}
			is, err := r.letsIn(ctx, p.Name, login)
			if err != nil {
				return err.Error()
			}
			if is != letIn {
				return fmt.Sprintf("%s is let in: %v", login.User, is)
			}
			return ""
		}); err != nil {
			return err
		}
	}
	return nil
}

// letsIn reports whether a NATS server lets a user in.
func (r *run) letsIn(ctx context.Context, pod string, login logins.Login) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	port, err := freePort()
	if err != nil {
		return false, err
	}
	forward(ctx, r.o.namespace, "pod/"+pod, port)
	for {
		conn, err := nats.Connect("nats://127.0.0.1:"+port, nats.UserInfo(login.User, login.Password), nats.NoReconnect())
		switch {
		case err == nil:
			conn.Close()
			return true, nil
		case errors.Is(err, nats.ErrAuthorization):
			return false, nil
		case ctx.Err() != nil:
			return false, fmt.Errorf("connect to %s: %w", pod, err)
		}
		time.Sleep(300 * time.Millisecond)
	}
}
