import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * Local files as killing:///…/killing/QUERY/…. Before a query does a step that others can see (a
 * file begins, gets its name, goes), it kills a process group with SIGKILL: once before each step,
 * by its name. It waits a while for the other queries, so that one kill does for all.
 *
 *   fs.killing.folder    local: of each query QUERY.steps, those that were killed at, a line each;
 *                        QUERY.done is there when it is at its end
 *   fs.killing.queries   those that run in this process, with commas
 *   fs.killing.group     the process group
 *   fs.killing.only      of the steps those that this expression finds
 *
 * Numbers and ids in a step's name are left out, but for those of a query's logs.
 */
public final class KillingFileSystem extends RawLocalFileSystem {
    private static final String IDS = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}";
    private static final String LOGS = ".*/(offsets|commits|_spark_metadata|sources/[0-9]+)/[0-9]+";
    private static final long TOGETHER_MS = 20_000;
    private static final Map<String, String> REACHED = new HashMap<>(); // by query

    @Override
    public URI getUri() {
        return URI.create("killing:///");
    }

    @Override
    public FSDataOutputStream create(
            Path path, boolean overwrite, int buffer, short copies, long block, Progressable told)
            throws IOException {
        step("create", path);
        return super.create(path, overwrite, buffer, copies, block, told);
    }

    @Override
    public FSDataOutputStream create(
            Path path,
            FsPermission rights,
            boolean overwrite,
            int buffer,
            short copies,
            long block,
            Progressable told)
            throws IOException {
        step("create", path);
        return super.create(path, rights, overwrite, buffer, copies, block, told);
    }

    @Override
    public boolean rename(Path from, Path to) throws IOException {
        step("rename", to);
        return super.rename(from, to);
    }

    @Override
    public boolean delete(Path path, boolean below) throws IOException {
        step("delete", path);
        return super.delete(path, below);
    }

    private void step(String what, Path path) throws IOException {
        String full = path.toUri().getPath();
        // Readers do not look at these; what is made of them is seen when it gets its name.
        if (path.getName().startsWith(".") || what.equals("create") && full.contains("/_temp")) {
            return;
        }
        String[] place = full.replaceFirst("^.*/killing/", "").split("/", 2);
        if (place.length < 2) {
            return;
        }
        String query = place[0];
        String below = place[1].replaceAll(IDS, "U");
        String name = what + " " + (full.matches(LOGS) ? below : below.replaceAll("[0-9]+", "N"));
        java.nio.file.Path steps = at(query + ".steps");
        if (!name.matches(".*(" + getConf().get("fs.killing.only", "") + ").*")
                || Files.exists(steps) && Files.readAllLines(steps).contains(name)) {
            return;
        }
        long until = System.nanoTime() + TOGETHER_MS * 1_000_000;
        while (true) {
            synchronized (REACHED) {
                REACHED.put(query, name);
                if (areAllThere() || System.nanoTime() > until) {
                    kill();
                }
            }
            sleep(50);
        }
    }

    private java.nio.file.Path at(String name) {
        return Paths.get(getConf().get("fs.killing.folder"), name);
    }

    private boolean areAllThere() {
        for (String query : getConf().get("fs.killing.queries").split(",")) {
            if (!REACHED.containsKey(query) && !Files.exists(at(query + ".done"))) {
                return false;
            }
        }
        return true;
    }

    private void kill() throws IOException {
        for (Map.Entry<String, String> each : REACHED.entrySet()) {
            Files.writeString(
                    at(each.getKey() + ".steps"),
                    each.getValue() + "\n",
                    StandardOpenOption.CREATE,
                    StandardOpenOption.APPEND);
        }
        new ProcessBuilder("kill", "-KILL", "--", "-" + getConf().get("fs.killing.group")).start();
        while (true) {
            sleep(1000); // with the lock: nobody else goes on
        }
    }

    private static void sleep(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException stopped) {
            // Not before it is killed.
        }
    }
}
