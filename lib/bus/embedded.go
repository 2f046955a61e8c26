package bus

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"golang.org/x/crypto/bcrypt"

	"tendril.dev/lib/logins"
	"tendril.dev/proto"
)

// startEmbedded starts the embedded server in its folder, which is one to be thrown away if none is
// given.
func (b *Bus) startEmbedded(o Options) error {
	if o.Dir == "" {
		temp, err := os.MkdirTemp("", "tendril-bus-")
		if err != nil {
			return fmt.Errorf("make a folder for the embedded NATS: %w", err)
		}
		o.Dir, b.temporary = temp, temp
	} else if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of the embedded NATS: %w", err)
	}
	var accounts string
	var err error
	if o.Password == "" {
		accounts, err = openAccount()
	} else {
		b.inside = rand.Text()
		accounts, err = embeddedAccounts(o.Password, b.inside)
	}
	if err != nil {
		return err
	}
	if b.server, err = startServer(o, accounts, b.lost); err != nil {
		return err
	}
	return nil
}

// insideUser is this process at an embedded server that has users.
const insideUser = proto.UserTendril

// embeddedOptions are those of this process's own connection to the embedded server.
func (b *Bus) embeddedOptions() []nats.Option {
	options := []nats.Option{nats.InProcessServer(b.server)}
	if b.inside != "" {
		options = append(options, nats.UserInfo(insideUser, b.inside))
	}
	return options
}

// openAccount is the configuration of an embedded server without a password: every connection is
// the same user. The streams are in the same account as with a password, so that an operator can
// set one, or remove it, on the same data. The user is a key, because the server warns of a user
// with an empty password.
func openAccount() (string, error) {
	key, err := nkeys.CreateUser()
	if err != nil {
		return "", fmt.Errorf("make a user of the embedded NATS: %w", err)
	}
	user, err := key.PublicKey()
	if err != nil {
		return "", fmt.Errorf("make a user of the embedded NATS: %w", err)
	}
	return fmt.Sprintf("accounts: {%s: {jetstream: enabled, users: [{nkey: %s}]}}\nno_auth_user: %s\n",
		proto.AccountCore, user, user), nil
}

// embeddedAccounts is the configuration of an embedded server with a password. Its users are the
// operator, `tendril import` with the same password, and this process, whose password is random.
// The hashes are in memory only, so passwords can be tried only through the server: a higher cost
// would be the server's own, for each connection.
func embeddedAccounts(operator, inside string) (string, error) {
	var users []logins.User
	for name, password := range map[string]string{insideUser: inside, proto.UserOperator: operator, proto.UserImport: operator} {
		hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
		if err != nil {
			return "", fmt.Errorf("hash the password of NATS user %s: %w", name, err)
		}
		users = append(users, logins.User{Name: name, Hash: string(hash)})
	}
	return logins.Render(users)
}

// startServer starts the embedded NATS server in o.Dir with these accounts. JetStream syncs every
// write: durable before done (docs/architecture.md, Six ideas). failed is told when the server
// cannot write.
func startServer(o Options, accounts string, failed chan<- error) (*server.Server, error) {
	opts := &server.Options{}
	if err := opts.ProcessConfigString(accounts); err != nil {
		return nil, fmt.Errorf("configure the accounts of the embedded NATS: %w", err)
	}
	for _, u := range opts.Users {
		if u.Username == insideUser {
			u.Permissions = nil // this process may do everything
		}
	}
	opts.ServerName, opts.StoreDir, opts.MaxPayload = "tendril", o.Dir, 1<<20
	opts.JetStream, opts.SyncAlways, opts.DontListen, opts.NoSigs = true, true, true, true
	if o.Listen != "" && o.Listen != "none" {
		host, port, err := net.SplitHostPort(o.Listen)
		if err != nil {
			return nil, fmt.Errorf("NGIT_NATS_LISTEN is %q: want host:port, or none: %w", o.Listen, err)
		}
		n, err := strconv.Atoi(port)
		if err != nil || n < 0 || n > 65535 {
			return nil, fmt.Errorf("NGIT_NATS_LISTEN is %q: port must be a number up to 65535", o.Listen)
		}
		if n == 0 {
			n = server.RANDOM_PORT
		}
		// The server itself would try for a while and then end the process; a look beforehand gives
		// a sentence instead.
		if n > 0 {
			l, err := net.Listen("tcp", o.Listen)
			if err != nil {
				return nil, fmt.Errorf("NGIT_NATS_LISTEN is %q: %w; choose another address, or none", o.Listen, err)
			}
			l.Close()
		}
		opts.DontListen, opts.Host, opts.Port = false, host, n
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("configure the embedded NATS: %w", err)
	}
	srv.SetLoggerV2(serverLog{o.Log, o.Dir, failed}, false, false, false)
	go srv.Start()
	if !srv.ReadyForConnections(30 * time.Second) {
		srv.Shutdown()
		return nil, errors.New("start the embedded NATS: not ready after 30 seconds")
	}
	if !srv.JetStreamEnabled() {
		srv.Shutdown()
		return nil, fmt.Errorf("start the embedded NATS: JetStream could not use the folder %s", o.Dir)
	}
	return srv, nil
}

// serverLog passes the server's own log on; its notices about itself are debug to us. It is also
// how a failed write is noticed: the server tells of it in no other way, and writes nothing more to
// that stream until it is started again.
type serverLog struct {
	log    *slog.Logger
	dir    string
	failed chan<- error
}

// failedWrite begins what the server logs when it could not write a message to its disk.
const failedWrite = "JetStream failed to store a msg on stream"

func (l serverLog) Noticef(format string, v ...any) { l.Debugf(format, v...) }
func (l serverLog) Warnf(format string, v ...any)   { l.log.Warn("nats: " + fmt.Sprintf(format, v...)) }
func (l serverLog) Fatalf(format string, v ...any)  { l.log.Error("nats: " + fmt.Sprintf(format, v...)) }
func (l serverLog) Tracef(format string, v ...any)  { l.Debugf(format, v...) }
func (l serverLog) Debugf(format string, v ...any) {
	l.log.Debug("nats: " + strings.TrimSpace(fmt.Sprintf(format, v...)))
}

func (l serverLog) Errorf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.log.Error("nats: " + text)
	if strings.HasPrefix(text, failedWrite) {
		select {
		case l.failed <- fmt.Errorf("the event log in %s cannot be written (is the disk full?): %s; make room and start again", l.dir, text):
		default:
		}
	}
}
