package bus

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/logins"
	"tendril.dev/proto"
)

const (
	// reconnectFirst and reconnectMost are the pauses between attempts to connect again: they grow
	// from one to the other. A part of each is random, so that not all processes of a deployment
	// come at the same moment.
	reconnectFirst = 250 * time.Millisecond
	reconnectMost  = 2 * time.Second
	// pingEvery and pingsOut say when a server is given up that fell silent without closing the
	// connection, as one whose node lost its power: after 6 to 9 s, within the TTL of claims.
	pingEvery = 3 * time.Second
	pingsOut  = 2
	// writeTimeout is how long one write may take. The client does not ping while it writes.
	writeTimeout = 8 * time.Second
	// reportedSubjects is how many refused subjects are remembered, to be logged once each.
	reportedSubjects = 1000
)

// connectOptions are the options of the connection, whatever server it goes to.
func (b *Bus) connectOptions(o Options) []nats.Option {
	outage := &outage{}
	return []nats.Option{
		nats.Name(o.Name),
		nats.MaxReconnects(-1),
		// A login that is refused may be one that a rotation has brought here before it reached the
		// server: it is tried again for ever, like a server that is away.
		nats.IgnoreAuthErrorAbort(),
		nats.CustomReconnectDelay(reconnectPause),
		nats.RetryOnFailedConnect(false),
		nats.PingInterval(cmp.Or(o.pingEvery, pingEvery)),
		nats.MaxPingsOutstanding(pingsOut),
		nats.FlusherTimeout(writeTimeout),
		// What is written while NATS is away fails at once. Kept back and sent to a server that was
		// started anew, a compare-and-set could meet other streams than it was meant for.
		nats.ReconnectBufSize(-1),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				o.Log.Warn("bus disconnected", "error", err)
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) {
			o.Log.Info("bus reconnected")
			outage.over()
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			if outage.news(err) {
				o.Log.Warn("bus cannot reconnect, trying again", "error", err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			switch {
			case errors.Is(err, nats.ErrPermissionViolation):
				b.refused.note(err, o.Log)
				return
			case isRefused(err): // comes to the handler of reconnects as well
				return
			}
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			o.Log.Warn("bus error", "subject", subject, "error", err)
		}),
	}
}

// remoteOptions are those of a connection to a server that is not embedded: who we are, and how to
// know the server. It reads each file once, so that what is wrong is told before anything else.
func remoteOptions(o Options) ([]nats.Option, error) {
	var options []nats.Option
	role := o.Role
	switch {
	case o.LoginFile != "":
		login, err := logins.Read(o.LoginFile)
		if err != nil {
			return nil, fileError(o.LoginFile, err)
		}
		role = logins.Role(login.User)
		options = append(options, nats.UserInfoHandler(func() (user, password string) {
			login, err := logins.Read(o.LoginFile)
			if err != nil {
				o.Log.Warn("no login for NATS", "error", fileError(o.LoginFile, err))
			}
			return login.User, login.Password
		}))
	case o.Creds != "":
		options = append(options, nats.UserCredentials(o.Creds))
	}
	if role != "" {
		options = append(options, nats.CustomInboxPrefix(proto.InboxPrefix(role)))
	}
	// nats.go reads these files again at every connect.
	if o.CA != "" {
		options = append(options, nats.RootCAs(o.CA))
	}
	if o.Cert != "" {
		options = append(options, nats.ClientCert(o.Cert, o.Key))
	}
	return options, nil
}

// openJetStream opens JetStream as the login of these options reaches it.
func openJetStream(conn *nats.Conn, o Options) (js jetstream.JetStream, err error) {
	user := cmp.Or(o.Role, proto.UserTendril)
	if o.LoginFile != "" {
		login, err := logins.Read(o.LoginFile)
		if err != nil {
			return nil, fileError(o.LoginFile, err)
		}
		user = logins.Role(login.User)
	}
	if guarded := o.LoginFile != "" || o.Password != ""; guarded && o.URL != "" && proto.AccountOf(user) != proto.AccountCore {
		js, err = jetstream.NewWithAPIPrefix(conn, proto.CoreAPI)
	} else {
		js, err = jetstream.New(conn)
	}
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	return js, nil
}

// fileError says what is wrong with the login file, in a sentence for the operator.
func fileError(path string, err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return fmt.Errorf("NGIT_NATS_LOGIN_FILE is %q: %w; want a file with one line, user:password", path, pathError.Err)
	}
	return fmt.Errorf("NGIT_NATS_LOGIN_FILE is %q: %w", path, err) // which says what is wanted
}

// connect connects to the server. A server that refuses a login closes the connection, and its
// reason can be lost with what it had not read: so an end without a reason is tried again.
func connect(url string, options []nats.Option) (conn *nats.Conn, err error) {
	for range 3 {
		conn, err = nats.Connect(url, options...)
		if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			return conn, err
		}
	}
	return conn, err
}

// connectError says why the first connect failed, in a sentence for the operator.
func connectError(o Options, err error) error {
	server := Redacted(o.URL)
	var authority x509.UnknownAuthorityError
	switch {
	case isRefused(err) && o.LoginFile != "":
		user := "(its login cannot be read)"
		if login, readErr := logins.Read(o.LoginFile); readErr == nil {
			user = login.User
		}
		return fmt.Errorf("NGIT_NATS_LOGIN_FILE is %q: NATS %s refused user %s: %w", o.LoginFile, server, user, err)
	case isRefused(err) && o.Creds != "":
		return fmt.Errorf("NGIT_NATS_CREDS is %q: NATS %s refused it: %w", o.Creds, server, err)
	case isRefused(err) && strings.Contains(o.URL, "@"):
		return fmt.Errorf("NGIT_NATS_URL is %q: NATS refused the user and password in it: %w", server, err)
	case isRefused(err):
		return fmt.Errorf("NGIT_NATS_LOGIN_FILE is not set: NATS %s wants another login: %w", server, err)
	case errors.As(err, &authority):
		return fmt.Errorf("NGIT_NATS_CA is %q: the certificate of NATS %s is not signed by any certificate in this file: %w", o.CA, server, err)
	}
	return fmt.Errorf("connect to NATS %s: %w", server, err)
}

// isRefused reports whether an error of connecting says that the server does not take the login.
func isRefused(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked)
}

// isSlow reports whether the first connect failed because the server, or this process, took longer
// than the two seconds that it may take, as both do on a machine under load.
func isSlow(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout() || errors.Is(err, nats.ErrTimeout)
}

// outage knows what has been told since the connection broke, so that each reason is told once.
type outage struct {
	mu   sync.Mutex
	told string
}

func (o *outage) over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.told = ""
}

func (o *outage) news(err error) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.told == err.Error() {
		return false
	}
	o.told = err.Error()
	return true
}

// reconnectPause is the pause before the attempts-th round of attempts.
func reconnectPause(attempts int) time.Duration {
	pause := reconnectFirst << min(max(attempts-1, 0), 10)
	pause = min(pause, reconnectMost)
	return pause/2 + rand.N(pause/2)
}

// Refused is how many times NATS has refused what this process wanted to publish or to subscribe
// to, because its user may not.
func (b *Bus) Refused() uint64 { return b.refused.count.Load() }

// refused counts what NATS did not permit, and logs each subject once.
type refused struct {
	count atomic.Uint64

	mu   sync.Mutex
	seen map[string]bool
}

// violation finds what was refused in the server's message.
var violation = regexp.MustCompile(`Permissions Violation for (Publish|Subscription) to "([^"]+)"`)

func (r *refused) note(err error, log *slog.Logger) {
	r.count.Add(1)
	what, subject := "", err.Error()
	if found := violation.FindStringSubmatch(subject); found != nil {
		what, subject = found[1], found[2]
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = map[string]bool{}
	}
	if key := what + " " + subject; !r.seen[key] && len(r.seen) < reportedSubjects {
		r.seen[key] = true
		log.Error("NATS refused what this user may not do", "what", what, "subject", subject)
	}
}
