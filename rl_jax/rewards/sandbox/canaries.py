"""Programs that try to get out, each in one way, and print what they got.

All are harmless where they succeed: they read secrets that were made up for them,
connect to a listener that waits for them, and send the signal 0. What they print, one
line of JSON, is proof of an escape and never of safety; that is judged by who made the
secret.
"""

# In each, ARGS is replaced by the arguments' JSON.
_PRELUDE = """
import ctypes, json, os, socket, sys, time
args = json.loads(ARGS)
got = {}
def attempt(name, action):
    try:
        got[name] = action()
    except Exception as error:
        got[name] = f"{type(error).__name__}"
"""
_EPILOGUE = """
print(json.dumps(got))
"""

_FILE = """
attempt("read", lambda: open(args["path"]).read())
attempt("write", lambda: open(args["path"], "w").write("escaped"))
attempt("make", lambda: open(args["path"] + ".new", "w").write("escaped"))
attempt("remove", lambda: os.remove(args["path"]))
attempt("list", lambda: os.listdir(os.path.dirname(args["path"])))
attempt("up", lambda: open("../../../../../.." + args["path"]).read())
"""

_ENVIRONMENT = """
libc = ctypes.CDLL(None)
names = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
attempt("python", lambda: sorted(os.environ))
attempt("libc", lambda: [names[0].decode()] if names and names[0] else [])
for pid in ("self", "1", str(os.getppid()), args["pid"]):
    attempt(pid, lambda: open(f"/proc/{pid}/environ").read())
"""

_NETWORK = """
def tcp(host, port):
    with socket.create_connection((host, port), 0.5):
        return "connected"
def unix(name):
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(name)
        return "connected"
def udp(host):
    with socket.socket(type=socket.SOCK_DGRAM) as end:
        return f"sent {end.sendto(b'x', (host, 9))}"
attempt("tcp, loopback", lambda: tcp("127.0.0.1", args["port"]))
attempt("abstract socket", lambda: unix("\\0" + args["name"]))
attempt("udp, outside", lambda: udp("192.0.2.1"))
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK).close() or "opened")
attempt("names", lambda: socket.getaddrinfo("example.com", 80) and "resolved")
"""

_PROCESSES = """
children = 0
PR_SET_NAME = 15
try:
    for _ in range(args["tries"]):
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(PR_SET_NAME, args["name"].encode(), 0, 0, 0)
            os.setsid()
            time.sleep(60)
        children += 1
except OSError:
    pass
got["children"] = children
"""

_SIGNAL = """
attempt("grader", lambda: os.kill(args["pid"], 0) or "reached")
attempt("its group", lambda: os.killpg(args["group"], 0) or "reached")
if os.getppid() != 1:  # the process above, if it is not out of reach by its number
    attempt("parent", lambda: os.kill(os.getppid(), 0) or "reached")
"""

_MEMORY = """
def read():
    with open(f"/proc/{args['pid']}/mem", "rb") as file:
        file.seek(args["address"])
        return file.read(args["size"]).decode()
attempt("/proc/PID/mem", read)
attempt("/proc/PID/maps", lambda: open(f"/proc/{args['pid']}/maps").readline())
"""

_CALL = """
libc = ctypes.CDLL(None, use_errno=True)
result = libc.syscall(*[ctypes.c_long(value) for value in args["call"]])
got["result"] = "allowed" if result >= 0 else os.strerror(ctypes.get_errno())
"""

_EXECUTE = """
attempt("shell", lambda: os.execv("/bin/sh", ["sh", "-c", "echo escaped"]))
"""

_DESCRIPTORS = """
import fcntl
def is_open(fd):
    try:
        fcntl.fcntl(fd, fcntl.F_GETFD)
        return True
    except OSError:
        return False
got["open"] = [fd for fd in range(3, 1024) if is_open(fd)]
"""

_FAMILY_MEMORY = """
import mmap
def take():
    block = mmap.mmap(-1, args["each"])
    for offset in range(0, args["each"], 4096):
        block[offset] = 1
    return block
done, finish = os.pipe()
os.set_blocking(done, False)
for _ in range(args["children"]):
    if os.fork() == 0:
        block = take()
        os.write(finish, b"x")
        time.sleep(60)
held = 0
while held < args["children"] and os.waitpid(-1, os.WNOHANG)[0] == 0:
    try:
        held += len(os.read(done, 1))
    except BlockingIOError:
        time.sleep(0.001)
got["held"] = held
"""

_DISK = """
def fill():
    total = 0
    for number in range(args["files"]):
        with open(f"filler{number}", "wb") as file:
            total += file.write(bytes(args["each"]))
    return total
total = 0
attempt("filled", fill)
"""

PROGRAMS = {
    "file": _FILE,
    "environment": _ENVIRONMENT,
    "descriptors": _DESCRIPTORS,
    "network": _NETWORK,
    "processes": _PROCESSES,
    "signal": _SIGNAL,
    "memory": _MEMORY,
    "call": _CALL,
    "execute": _EXECUTE,
    "family memory": _FAMILY_MEMORY,
    "disk": _DISK,
}


def program(name: str, arguments: str) -> str:
    """The text of a canary; `arguments` is JSON of what it needs to try."""
    prelude = _PRELUDE.replace("ARGS", repr(arguments))
    return prelude + PROGRAMS[name] + _EPILOGUE
