import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;

/**
 * Flink's file sink in streaming mode, exactly once: copies the Parquet files of mixed rows, once per line on stdin.
 *
 * <p>Arguments: directory of the rows, directory of checkpoints, tasks, milliseconds between checkpoints. A line has the
 * format and the directory to write, with a tab in between. "done" follows when all files are committed.
 */
public class FlinkFiles {
    private static final String COLUMNS = " (id BIGINT, x DOUBLE, name STRING, ts TIMESTAMP(6), flag BOOLEAN) ";

    public static void main(String[] args) throws Exception {
        MiniClusterConfiguration settings = new MiniClusterConfiguration.Builder()
            .setConfiguration(of("rest.address", "127.0.0.1", "rest.bind-address", "127.0.0.1", "rest.bind-port", "0",
                "taskmanager.memory.managed.size", "64m"))
            .setNumTaskManagers(1)
            .setNumSlotsPerTaskManager(Integer.parseInt(args[2]))
            .build();
        try (MiniCluster cluster = new MiniCluster(settings)) {
            cluster.start();
            String port = String.valueOf(cluster.getRestAddress().get().getPort());
            TableEnvironment sql = TableEnvironment.create(EnvironmentSettings.newInstance().inStreamingMode()
                .withConfiguration(of("execution.target", "remote", "rest.address", "127.0.0.1", "rest.port", port,
                    "parallelism.default", args[2], "execution.checkpointing.mode", "EXACTLY_ONCE",
                    "execution.checkpointing.interval", args[3] + " ms",
                    "execution.checkpointing.dir", "file:" + args[1]))
                .build());
            sql.executeSql("CREATE TABLE given" + COLUMNS + files("parquet", args[0]));
            System.out.println("ready");
            BufferedReader jobs = new BufferedReader(new InputStreamReader(System.in));
            for (String line = jobs.readLine(); line != null; line = jobs.readLine()) {
                String[] job = line.split("\t");
                sql.executeSql("CREATE TABLE written" + COLUMNS + files(job[0], job[1]));
                sql.executeSql("INSERT INTO written SELECT * FROM given").await();
                sql.executeSql("DROP TABLE written");
                System.out.println("done");
            }
        }
    }

    private static String files(String format, String directory) {
        return "WITH ('connector' = 'filesystem', 'path' = 'file:" + directory + "', 'format' = '" + format + "')";
    }

    private static Configuration of(String... pairs) {
        Configuration made = new Configuration();
        for (int i = 0; i < pairs.length; i += 2) {
            made.setString(pairs[i], pairs[i + 1]);
        }
        return made;
    }
}
